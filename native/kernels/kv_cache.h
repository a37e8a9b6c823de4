// The memory that KV block ids index. Knows no sequence and no owner: those are the cache manager's.
#pragma once

#include <memory>

#include "layout.h"
#include "memory.h"

namespace sixfold {

class KVCache {
 public:
  static constexpr size_t kAheadBytes = size_t{256} << 20, kAtOnceBytes = size_t{32} << 20;

  // Throws std::invalid_argument, std::bad_alloc.
  KVCache(int n_layers, int n_kv_heads, int head_dim, int n_blocks, bool is_float);

  const KvView& view() const { return view_; }
  size_t bytes() const;

  // pairs [n][2] of (source, destination) blocks, in order, in all layers. Throws std::invalid_argument.
  void copy_blocks(const int32_t* pairs, int n);

  // Memory comes with its first use, 2 MB at a time, and a step that waits for it takes twice its time. Of the blocks
  // up to `n_used` and kAheadBytes of those behind them, gives those memory that have none yet, kAtOnceBytes of them at
  // the most; what blocks hold stays. Returns whether more is left. Not beside another call of itself.
  bool give_memory(int n_used);

  // One block of one layer and head as float32 [16][head_dim]: for tests.
  void read_block(int layer, int block, int head, float* keys, float* values) const;

  // Every byte of a block to `byte` (0xff: NaN everywhere), as a freed block might look: for tests.
  void fill_block(int block, uint8_t byte);

 private:
  std::unique_ptr<Pages> pages_;
  KvView view_;
  int n_given_ = 0;  // blocks that have memory
};

}  // namespace sixfold
