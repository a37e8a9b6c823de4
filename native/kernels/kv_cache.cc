#include "kv_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace sixfold {
namespace {

float bf16_to_float(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

float load_float(const uint8_t* p) {
  float x;
  std::memcpy(&x, p, 4);
  return x;
}

}  // namespace

KVCache::KVCache(int n_layers, int n_kv_heads, int head_dim, int n_blocks, bool is_float) {
  if (n_layers < 1 || n_kv_heads < 1 || n_blocks < 1)
    throw std::invalid_argument("a KV cache needs layers, heads and blocks");
  if (head_dim < 32 || head_dim % 32 != 0 || head_dim > 512)
    throw std::invalid_argument("head dimension " + std::to_string(head_dim) + " is not a multiple of 32 up to 512");
  view_ = KvView{nullptr, n_layers, n_blocks, n_kv_heads, head_dim, is_float ? 1 : 0};
  pages_ = std::make_unique<Pages>(bytes());
  view_.base = pages_->data();
}

size_t KVCache::bytes() const { return static_cast<size_t>(view_.n_layers) * view_.n_blocks * kv_block_bytes(view_); }

void KVCache::copy_blocks(const int32_t* pairs, int n) {
  for (int i = 0; i < 2 * n; i++)
    if (pairs[i] < 0 || pairs[i] >= view_.n_blocks)
      throw std::invalid_argument("block " + std::to_string(pairs[i]) + " is not in the cache");
  const size_t bytes = kv_block_bytes(view_);
  for (int i = 0; i < n; i++)
    for (int layer = 0; layer < view_.n_layers; layer++)
      if (pairs[2 * i] != pairs[2 * i + 1])
        std::memcpy(kv_block(view_, layer, pairs[2 * i + 1], 0), kv_block(view_, layer, pairs[2 * i], 0), bytes);
}

bool KVCache::give_memory(int n_used) {
#ifdef MADV_POPULATE_WRITE  // Linux 5.14; where there is none, memory comes with its use
  const size_t block = kv_block_bytes(view_), all_layers = block * view_.n_layers;
  const auto blocks_of = [&](size_t bytes) { return static_cast<int64_t>(std::max<size_t>(1, bytes / all_layers)); };
  const int64_t wanted = std::min<int64_t>(view_.n_blocks, std::max(0, n_used) + blocks_of(kAheadBytes));
  if (n_given_ >= wanted) return false;
  const int end = static_cast<int>(std::min(wanted, n_given_ + blocks_of(kAtOnceBytes)));
  for (int layer = 0; layer < view_.n_layers; layer++) {
    const auto from = reinterpret_cast<uintptr_t>(kv_block(view_, layer, n_given_, 0)) & ~uintptr_t{4095};
    const auto to = reinterpret_cast<uintptr_t>(kv_block(view_, layer, end - 1, 0)) + block;
    if (madvise(reinterpret_cast<void*>(from), to - from, MADV_POPULATE_WRITE) != 0) {
      n_given_ = view_.n_blocks;  // an older kernel, or no memory now: it is not asked again
      return false;
    }
  }
  n_given_ = end;
  return n_given_ < wanted;
#else
  static_cast<void>(n_used);
  return false;
#endif
}

void KVCache::read_block(int layer, int block, int head, float* keys, float* values) const {
  if (layer < 0 || layer >= view_.n_layers || block < 0 || block >= view_.n_blocks || head < 0 ||
      head >= view_.n_kv_heads)
    throw std::invalid_argument("no such layer, block or head");
  const int d = view_.head_dim;
  const uint8_t* k = kv_block(view_, layer, block, head);
  const uint8_t* v = k + kv_half_bytes(view_);
  for (int t = 0; t < kBlockTokens; t++)
    for (int i = 0; i < d; i++) {
      const size_t at = static_cast<size_t>(t) * d + i;
      if (view_.is_float) {
        keys[at] = load_float(k + 4 * (i * kBlockTokens + t));
        values[at] = load_float(v + 4 * at);
      } else {
        keys[at] = bf16_to_float(k + 2 * ((i / 2 * kBlockTokens + t) * 2 + i % 2));
        values[at] = bf16_to_float(v + 2 * ((t / 2 * static_cast<size_t>(d) + i) * 2 + t % 2));
      }
    }
}

void KVCache::fill_block(int block, uint8_t byte) {
  if (block < 0 || block >= view_.n_blocks) throw std::invalid_argument("no such block");
  for (int layer = 0; layer < view_.n_layers; layer++)
    std::memset(kv_block(view_, layer, block, 0), byte, kv_block_bytes(view_));
}

}  // namespace sixfold
