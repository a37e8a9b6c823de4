// Anonymous memory on huge pages: weights, KV blocks and scratch are streamed, and 4 KiB pages cost a TLB miss each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace sixfold {

// One mapping, zeroed lazily by the kernel. Owns its bytes.
class Pages {
 public:
  explicit Pages(size_t bytes);  // throws std::bad_alloc
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* mapping_;
  size_t mapping_size_;
  uint8_t* data_;
  size_t size_;
};

// Many small blocks out of few large mappings; everything is freed together. Each block begins on a cache line and
// may be prefetched (not read) a little beyond its end.
class Arena {
 public:
  uint8_t* allocate(size_t bytes);  // thread-safe
  size_t bytes() const { return bytes_; }
  ~Arena();

 private:
  std::mutex mutex_;
  std::vector<Pages*> chunks_;
  size_t used_ = 0;  // of the last chunk
  size_t bytes_ = 0;
};

}  // namespace sixfold
