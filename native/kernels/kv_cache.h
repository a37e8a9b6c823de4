// The memory that KV block ids index. Knows no sequence and no owner: those are the cache manager's.
#pragma once

#include <memory>

#include "layout.h"
#include "memory.h"

namespace sixfold {

class KVCache {
 public:
  // Throws std::invalid_argument, std::bad_alloc.
  KVCache(int n_layers, int n_kv_heads, int head_dim, int n_blocks, bool is_float);

  const KvView& view() const { return view_; }
  size_t bytes() const;

  // pairs [n][2] of (source, destination) blocks, in order, in all layers. Throws std::invalid_argument.
  void copy_blocks(const int32_t* pairs, int n);

  // One block of one layer and head as float32 [16][head_dim]: for tests.
  void read_block(int layer, int block, int head, float* keys, float* values) const;

  // Every byte of a block to `byte` (0xff: NaN everywhere), as a freed block might look: for tests.
  void fill_block(int block, uint8_t byte);

 private:
  std::unique_ptr<Pages> pages_;
  KvView view_;
};

}  // namespace sixfold
