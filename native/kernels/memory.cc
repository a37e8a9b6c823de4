#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "layout.h"

namespace sixfold {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunk = size_t{64} << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

Pages::Pages(size_t bytes) : size_(round_up(std::max<size_t>(bytes, 1), 4096)) {
  // Small mappings stay on small pages: a huge one would waste more than it speeds up.
  const bool huge = size_ >= kHugePage / 2;
  if (huge) size_ = round_up(size_, kHugePage);
  mapping_size_ = size_ + (huge ? kHugePage : 0);
  mapping_ = mmap(nullptr, mapping_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  const auto at = reinterpret_cast<uintptr_t>(mapping_);
  data_ = reinterpret_cast<uint8_t*>(huge ? round_up(at, kHugePage) : at);
  if (huge) madvise(data_, size_, MADV_HUGEPAGE);
}

Pages::~Pages() { munmap(mapping_, mapping_size_); }

uint8_t* Arena::allocate(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bytes = round_up(std::max<size_t>(bytes, 1), 64);
  if (chunks_.empty() || used_ + bytes + kPrefetchSlack > chunks_.back()->size()) {
    chunks_.push_back(new Pages(std::max(bytes + kPrefetchSlack, kChunk)));
    used_ = 0;
  }
  uint8_t* p = chunks_.back()->data() + used_;
  used_ += bytes;
  bytes_ += bytes;
  return p;
}

Arena::~Arena() {
  for (Pages* chunk : chunks_) delete chunk;
}

}  // namespace sixfold
