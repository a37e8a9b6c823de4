#include "pack.h"

#include <atomic>
#include <cstring>
#include <stdexcept>

#include "finite.h"

namespace sixfold {
namespace {

uint16_t load_u16(const uint8_t* p) {
  uint16_t x;
  std::memcpy(&x, p, 2);
  return x;
}

// Bytes of a block in the file, and how many values it holds.
struct BlockSize {
  int bytes, values;
};

BlockSize block_size(int ggml_type) {
  switch (ggml_type) {
    case kGgmlF32:
      return {4, 1};
    case kGgmlF16:
    case kGgmlBF16:
      return {2, 1};
    case kGgmlQ4_0:
      return {18, 32};
    case kGgmlQ4_1:
      return {20, 32};
    case kGgmlQ5_0:
      return {22, 32};
    case kGgmlQ5_1:
      return {24, 32};
    case kGgmlQ8_0:
      return {34, 32};
    case kGgmlQ4_K:
      return {144, 256};
    case kGgmlQ5_K:
      return {176, 256};
    case kGgmlQ6_K:
      return {210, 256};
    default:
      return {0, 1};
  }
}

// Where the parts of a block of 32 values lie.
struct Small {
  uint16_t d, m;           // bits of float16
  const uint8_t* high;     // 4 bytes: bit i is the fifth bit of value i; null where there is none
  const uint8_t* nibbles;  // 16 bytes: values i and 16 + i
};

Small small_block(int ggml_type, const uint8_t* b) {
  const bool minimum = ggml_type == kGgmlQ4_1 || ggml_type == kGgmlQ5_1;
  const bool five = ggml_type == kGgmlQ5_0 || ggml_type == kGgmlQ5_1;
  const uint8_t* p = b + (minimum ? 4 : 2);
  return {load_u16(b), minimum ? load_u16(b + 2) : uint16_t{0}, five ? p : nullptr, five ? p + 4 : p};
}

// The 6-bit scale and minimum of 32 values of Q4_K and Q5_K.
void scale_and_minimum(const uint8_t* q, int part, uint8_t* scale, uint8_t* minimum) {
  if (part < 4) {
    *scale = q[part] & 63;
    *minimum = q[part + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((q[part + 4] & 15) | (q[part - 4] >> 6 << 4));
    *minimum = static_cast<uint8_t>((q[part + 4] >> 4) | (q[part] >> 6 << 4));
  }
}

// 32 unsigned codes: part `part` of a block (0 for blocks of 32).
void read_codes(int ggml_type, const uint8_t* b, int part, uint8_t* codes) {
  if (ggml_type == kGgmlQ6_K) {
    const int half = part / 4, quarter = part % 4;
    const uint8_t *low = b + 64 * half + 32 * (quarter & 1), *high = b + 128 + 32 * half;
    for (int i = 0; i < 32; i++)
      codes[i] = static_cast<uint8_t>((quarter < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> 2 * quarter & 3) << 4);
  } else if (ggml_type == kGgmlQ4_K || ggml_type == kGgmlQ5_K) {
    const bool five = ggml_type == kGgmlQ5_K;
    const uint8_t *high = b + 16, *nibbles = b + (five ? 48 : 16) + 32 * (part / 2);
    for (int i = 0; i < 32; i++)
      codes[i] = static_cast<uint8_t>((part % 2 ? nibbles[i] >> 4 : nibbles[i] & 15) |
                                      (five ? (high[i] >> part & 1) << 4 : 0));
  } else {
    const Small small = small_block(ggml_type, b);
    for (int i = 0; i < 16; i++) codes[i] = small.nibbles[i] & 15, codes[16 + i] = small.nibbles[i] >> 4;
    if (small.high)
      for (int i = 0; i < 32; i++) codes[i] = static_cast<uint8_t>(codes[i] | (small.high[i / 8] >> i % 8 & 1) << 4);
  }
}

// Where column c of block b of a pair has its lane, in bytes of lanes of 4 in [half][16 lanes].
int lane_at(int c, int b) { return 64 * (c / 8) + 4 * (2 * (c % 8) + b); }

// Column c of block b of a tile's codes, from 32 codes of 4 to 6 bits.
void put_codes(WeightKind kind, const uint8_t* codes, int c, int b, uint8_t* out) {
  out += lane_at(c, b);
  for (int i = 0; i < 16; i++) out[128 * (i / 4) + i % 4] = static_cast<uint8_t>((codes[i] & 15) | codes[16 + i] << 4);
  uint8_t* planes = out + kCodeBytes4;
  if (code_bytes(kind) == kCodeBytes5) {
    for (int i = 0; i < 4; i++) {
      int bits = 0;
      for (int g = 0; g < 8; g++) bits |= (codes[4 * g + i] >> 4 & 1) << g;
      planes[i] = static_cast<uint8_t>(bits);
    }
  } else if (code_bytes(kind) == kCodeBytes6) {
    for (int i = 0; i < 8; i++) {
      int bits = 0;
      for (int g = 0; g < 4; g++) bits |= (codes[16 * (i / 4) + 4 * g + i % 4] >> 4 & 3) << 2 * g;
      planes[128 * (i / 4) + i % 4] = static_cast<uint8_t>(bits);
    }
  }
}

struct PackJob {
  const PackSource* sources;
  int n_sources;
  bool interleave;
  WeightKind kind;
  int32_t n_tiles, k;
  uint8_t* tiles;
  std::atomic<bool> finite;
};

// The 16 rows of a tile; null where the matrix is padded.
void tile_rows(const PackJob& job, int tile, const uint8_t* rows[kLanes], int* type) {
  int source = 0;
  int64_t first = static_cast<int64_t>(tile) * kLanes;
  if (job.interleave) {
    source = tile % job.n_sources;
    first = static_cast<int64_t>(tile / job.n_sources) * kLanes;
  } else {
    while (first >= job.sources[source].n_rows && source + 1 < job.n_sources) first -= job.sources[source++].n_rows;
  }
  const PackSource& s = job.sources[source];
  const size_t stride = row_bytes(s.ggml_type, s.k);
  *type = s.ggml_type;
  for (int c = 0; c < kLanes; c++) rows[c] = first + c < s.n_rows ? s.data + (first + c) * stride : nullptr;
}

// Ties to even; NaN stays NaN.
uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

constexpr uint8_t kNothing[256] = {};  // a block of zeros, for the rows of padding

// Block `block` of a row of n_blocks; zeros where there is none.
const uint8_t* block_of(const uint8_t* row, int block, int n_blocks, int bytes) {
  return row && block < n_blocks ? row + static_cast<size_t>(block) * bytes : kNothing;
}

// The code in the middle of those of a type with a minimum.
int middle_code(WeightKind kind) { return code_bytes(kind) == kCodeBytes5 ? 16 : 8; }

// Q4_0, Q4_1, Q5_0, Q5_1: GGUF's bytes of nibbles are already those of the tile.
void pack_small(WeightKind kind, int type, const uint8_t* const rows[kLanes], int pair, int n_blocks, uint8_t* out) {
  for (int c = 0; c < kLanes; c++)
    for (int b = 0; b < 2; b++) {
      const Small small = small_block(type, block_of(rows[c], 2 * pair + b, n_blocks, block_size(type).bytes));
      uint8_t* codes = out + lane_at(c, b);
      for (int g = 0; g < 4; g++) std::memcpy(codes + 128 * g, small.nibbles + 4 * g, 4);
      if (small.high) {
        // Bit 4 g + i goes to bit g of byte i: an 8 x 4 transposition of bits.
        uint32_t high, planes = 0;
        std::memcpy(&high, small.high, 4);
        for (int i = 0; i < 4; i++)
          for (int g = 0; g < 8; g++) planes |= (high >> (4 * g + i) & 1) << (8 * i + g);
        std::memcpy(codes + kCodeBytes4, &planes, 4);
      }
      uint8_t* numbers = out + code_bytes(kind) + lane_at(c, b) / 2;
      std::memcpy(numbers, &small.d, 2);
      if (!has_minimum(kind)) continue;
      const float d = half_to_float(small.d), m = half_to_float(small.m);
      const uint16_t middle = to_bf16(m + static_cast<float>(middle_code(kind)) * d);
      std::memcpy(numbers + kPairNumbers, &middle, 2);
    }
}

void pack_q8_0(const uint8_t* const rows[kLanes], int pair, int n_blocks, uint8_t* out) {
  for (int c = 0; c < kLanes; c++)
    for (int b = 0; b < 2; b++) {
      const uint8_t* from = block_of(rows[c], 2 * pair + b, n_blocks, 34);
      for (int g = 0; g < 8; g++) {
        uint32_t quad;
        std::memcpy(&quad, from + 2 + 4 * g, 4);
        quad ^= 0x80808080u;  // q + 128
        std::memcpy(out + 128 * g + lane_at(c, b), &quad, 4);
      }
      std::memcpy(out + kCodeBytes8 + lane_at(c, b) / 2, from, 2);
    }
}

// Q4_K, Q5_K, Q6_K: 256 k of 16 columns.
void pack_super(WeightKind kind, int type, const uint8_t* const rows[kLanes], int block, uint8_t* out) {
  const int bytes = block_size(type).bytes;
  for (int c = 0; c < kLanes; c++) {
    const uint8_t* from = rows[c] ? rows[c] + static_cast<size_t>(block) * bytes : kNothing;
    std::memcpy(out + 2 * c, type == kGgmlQ6_K ? from + 208 : from, 2);
    std::memcpy(out + 32 + 2 * c, type == kGgmlQ6_K ? kNothing : from + 2, 2);
    for (int part = 0; part < kSuperBlock / kQuantBlock; part++) {
      const int pair = part / 2, b = part % 2;
      uint8_t* scales = out + 64 + 64 * pair + lane_at(c, b) / 4;
      if (type == kGgmlQ6_K)
        scales[0] = from[192 + 2 * part], scales[32] = from[193 + 2 * part];
      else
        scale_and_minimum(from + 4, part, scales, scales + 32);
      uint8_t codes[kQuantBlock];
      read_codes(type, from, part, codes);
      put_codes(kind, codes, c, b, out + kSuperHeader + pair * code_bytes(kind));
    }
  }
}

// BF16 as it is; F16 rounded to it.
void pack_bf16(const uint8_t* const rows[kLanes], int type, int block, uint8_t* out) {
  for (int c = 0; c < kLanes; c++)
    for (int i = 0; i < kQuantBlock; i++) {
      uint16_t x = rows[c] ? load_u16(rows[c] + 2 * (static_cast<size_t>(block) * kQuantBlock + i)) : 0;
      if (type == kGgmlF16) x = to_bf16(half_to_float(x));
      std::memcpy(out + 4 * (i / 2 * kLanes + c) + 2 * (i % 2), &x, 2);
    }
}

void pack_f32(const uint8_t* const rows[kLanes], int type, int block, uint8_t* out) {
  float values[kQuantBlock];
  for (int c = 0; c < kLanes; c++) {
    std::memset(values, 0, sizeof values);
    if (rows[c]) dequantize(type, rows[c], int64_t{block} * kQuantBlock, int64_t{block + 1} * kQuantBlock, values);
    for (int i = 0; i < kQuantBlock; i++) std::memcpy(out + 4 * (i * kLanes + c), values + i, 4);
  }
}

constexpr int kTilesPerChunk = 4;

void pack_chunk(void* arg, const void*, int chunk, int) {
  PackJob& job = *static_cast<PackJob*>(arg);
  const int depth = tiles_of(job.kind, job.k), n_blocks = job.k / kQuantBlock;
  const size_t size = tile_bytes(job.kind);
  for (int tile = chunk * kTilesPerChunk; tile < (chunk + 1) * kTilesPerChunk && tile < job.n_tiles; tile++) {
    const uint8_t* rows[kLanes];
    int type;
    tile_rows(job, tile, rows, &type);
    for (const uint8_t* row : rows)  // they are read again at once, from the cache
      if (row && first_not_finite(type, row, job.k) >= 0) job.finite.store(false, std::memory_order_relaxed);
    for (int b = 0; b < depth; b++) {
      uint8_t* out = job.tiles + (static_cast<size_t>(tile) * depth + b) * size;
      if (job.kind == kWeightF32)
        pack_f32(rows, type, b, out);
      else if (job.kind == kWeightBF16)
        pack_bf16(rows, type, b, out);
      else if (job.kind == kWeightQ8_0)
        pack_q8_0(rows, b, n_blocks, out);
      else if (is_super(job.kind))
        pack_super(job.kind, type, rows, b, out);
      else
        pack_small(job.kind, type, rows, b, n_blocks, out);
    }
  }
}

WeightKind kind_of(int ggml_type) {
  switch (ggml_type) {
    case kGgmlQ4_0:
      return kWeightQ4_0;
    case kGgmlQ4_1:
      return kWeightQ4_1;
    case kGgmlQ5_0:
      return kWeightQ5_0;
    case kGgmlQ5_1:
      return kWeightQ5_1;
    case kGgmlQ8_0:
      return kWeightQ8_0;
    case kGgmlQ4_K:
      return kWeightQ4_K;
    case kGgmlQ5_K:
      return kWeightQ5_K;
    case kGgmlQ6_K:
      return kWeightQ6_K;
    case kGgmlF16:
    case kGgmlBF16:
      return kWeightBF16;
    default:
      return kWeightF32;
  }
}

[[noreturn]] void refuse(const PackSource& s, const std::string& fault) {
  throw std::invalid_argument((s.name.empty() ? "" : "tensor '" + s.name + "': ") + fault);
}

void check(const PackSource& s) {
  const size_t stride = row_bytes(s.ggml_type, s.k);
  if (block_size(s.ggml_type).bytes == 0) refuse(s, "tensor type " + std::to_string(s.ggml_type) + " has no kernel");
  if (s.k <= 0 || s.k % kQuantBlock != 0 || s.k > (1 << 24))
    refuse(s, "a matrix needs a multiple of 32 inputs, not " + std::to_string(s.k));
  if (s.k % block_size(s.ggml_type).values != 0)
    refuse(s, std::to_string(s.k) + " inputs are not whole blocks of the tensor's type");
  if (s.n_rows <= 0 || s.n_rows > (1 << 28)) refuse(s, "a matrix needs at least one row");
  if (s.bytes != static_cast<size_t>(s.n_rows) * stride)
    refuse(s, "a tensor of " + std::to_string(s.n_rows) + " x " + std::to_string(s.k) + " has " +
                  std::to_string(s.n_rows * stride) + " bytes, not " + std::to_string(s.bytes));
}

}  // namespace

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = static_cast<uint32_t>(half & 0x7fff)
                                                                                << 13;
  uint32_t bits = magnitude;
  float x;
  std::memcpy(&x, &bits, 4);
  x *= 0x1p112f;
  std::memcpy(&bits, &x, 4);
  if ((half & 0x7c00) == 0x7c00) bits = magnitude | 0x7f800000;
  bits |= sign;
  std::memcpy(&x, &bits, 4);
  return x;
}

float bf16_to_float(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

size_t row_bytes(int ggml_type, int64_t k) {
  const BlockSize size = block_size(ggml_type);
  return k / size.values * size.bytes;
}

void dequantize(int ggml_type, const uint8_t* row, int64_t begin, int64_t end, float* out) {
  const BlockSize size = block_size(ggml_type);
  for (int64_t i = begin; i < end; i += kQuantBlock, out += kQuantBlock) {
    const uint8_t* b = row + i / size.values * size.bytes;
    const int part = static_cast<int>(i % size.values / kQuantBlock);
    uint8_t codes[kQuantBlock], scale, minimum;
    float d, m;
    switch (ggml_type) {
      case kGgmlF32:
        std::memcpy(out, b, 4 * kQuantBlock);
        break;
      case kGgmlF16:
        for (int j = 0; j < kQuantBlock; j++) out[j] = half_to_float(load_u16(b + 2 * j));
        break;
      case kGgmlBF16:
        for (int j = 0; j < kQuantBlock; j++) out[j] = bf16_to_float(load_u16(b + 2 * j));
        break;
      case kGgmlQ8_0:
        d = half_to_float(load_u16(b));
        for (int j = 0; j < kQuantBlock; j++) out[j] = d * static_cast<float>(static_cast<int8_t>(b[2 + j]));
        break;
      case kGgmlQ6_K:
        d = half_to_float(load_u16(b + 208));
        read_codes(ggml_type, b, part, codes);
        for (int j = 0; j < kQuantBlock; j++)
          out[j] = d * static_cast<float>(static_cast<int8_t>(b[192 + 2 * part + j / 16])) *
                   static_cast<float>(codes[j] - 32);
        break;
      case kGgmlQ4_K:
      case kGgmlQ5_K:
        scale_and_minimum(b + 4, part, &scale, &minimum);
        d = half_to_float(load_u16(b)) * static_cast<float>(scale);
        m = half_to_float(load_u16(b + 2)) * static_cast<float>(minimum);
        read_codes(ggml_type, b, part, codes);
        for (int j = 0; j < kQuantBlock; j++) out[j] = d * static_cast<float>(codes[j]) - m;
        break;
      default:
        d = half_to_float(small_block(ggml_type, b).d), m = half_to_float(small_block(ggml_type, b).m);
        read_codes(ggml_type, b, 0, codes);
        const int zero = ggml_type == kGgmlQ4_0 ? 8 : ggml_type == kGgmlQ5_0 ? 16 : 0;
        for (int j = 0; j < kQuantBlock; j++) out[j] = d * static_cast<float>(codes[j] - zero) + m;
    }
  }
}

void check_finite(const PackSource& s) {
  const size_t stride = row_bytes(s.ggml_type, s.k);
  for (int64_t row = 0; row < s.n_rows; row++) {
    const int64_t at = first_not_finite(s.ggml_type, s.data + row * stride, s.k);
    if (at >= 0)
      refuse(s, "a number is not finite (row " + std::to_string(row) + ", the block at " + std::to_string(at) + ")");
  }
}

MatrixView pack_part(const PackSource* sources, int n_sources, bool interleave, WeightKind kind, ThreadPool& pool,
                     Arena& arena, size_t* bytes) {
  int64_t n = 0;
  for (int i = 0; i < n_sources; i++) n += sources[i].n_rows;
  PackJob job{sources,
              n_sources,
              interleave,
              kind,
              static_cast<int32_t>((n + kLanes - 1) / kLanes),
              static_cast<int32_t>(sources[0].k),
              nullptr,
              {true}};
  const int n_chunks = (job.n_tiles + kTilesPerChunk - 1) / kTilesPerChunk;
  if (n_chunks > kMaxChunks) throw std::invalid_argument("a matrix has at most 3.8 million rows");
  const size_t size = static_cast<size_t>(job.n_tiles) * tiles_of(kind, job.k) * tile_bytes(kind);
  job.tiles = arena.allocate(size);
  pool.run({Phase{pack_chunk, nullptr, n_chunks}}, &job);
  if (!job.finite)
    for (int i = 0; i < n_sources; i++) check_finite(sources[i]);
  *bytes += size;
  return MatrixView{kind, job.n_tiles * kLanes, static_cast<int32_t>(n), job.k, job.tiles};
}

std::shared_ptr<PackedMatrix> pack_matrix(const std::vector<PackSource>& sources, bool interleave,
                                          bool float_activations, ThreadPool& pool, std::shared_ptr<Arena> arena) {
  if (sources.empty()) throw std::invalid_argument("a matrix needs at least one tensor");
  bool same_type = true, same_act = !float_activations;
  const ActKind act = act_kind(kind_of(sources[0].ggml_type));
  for (size_t i = 0; i < sources.size(); i++) {
    const PackSource& s = sources[i];
    check(s);
    if (s.k != sources[0].k) throw std::invalid_argument("tensors of one matrix need equal numbers of inputs");
    if (interleave && (s.n_rows != sources[0].n_rows || s.n_rows % kLanes != 0))
      throw std::invalid_argument("interleaved tensors need equal numbers of rows, a multiple of 16");
    if (i + 1 < sources.size() && s.n_rows % kLanes != 0)
      throw std::invalid_argument("a tensor that another follows needs a multiple of 16 rows");
    same_type = same_type && s.ggml_type == sources[0].ggml_type;
    same_act = same_act && act_kind(kind_of(s.ggml_type)) == act;
  }
  const bool plain = !same_act || (interleave && !same_type);
  const auto kind = [&](const PackSource& s) { return plain ? kWeightF32 : kind_of(s.ggml_type); };

  auto matrix = std::make_shared<PackedMatrix>();
  matrix->act = plain ? kActFloat : act;
  matrix->k = static_cast<int32_t>(sources[0].k);
  const int n_sources = static_cast<int>(sources.size());
  for (int i = 0; i < n_sources;) {
    int end = i + 1;
    while (end < n_sources && kind(sources[end]) == kind(sources[i])) end++;
    matrix->parts.push_back(
        pack_part(&sources[i], end - i, interleave, kind(sources[i]), pool, *arena, &matrix->bytes));
    matrix->n += matrix->parts.back().n;
    matrix->n_true += matrix->parts.back().n_true;
    i = end;
  }
  matrix->arena = std::move(arena);
  return matrix;
}

void matmul(const KernelTable& kernels, const PackedMatrix& w, const uint8_t* act, int row_begin, int n_rows,
            int tile_begin, int n_tiles, float* out, int ldo, Aside* aside) {
  for (const MatrixView& part : w.parts) {
    const int tiles = part.n / kLanes, some = tiles - tile_begin < n_tiles ? tiles - tile_begin : n_tiles;
    if (some > 0) {
      kernels.matmul(&part, act, row_begin, n_rows, tile_begin, some, out, ldo, aside);
      out += some * kLanes, n_tiles -= some, tile_begin += some;
      if (!n_tiles) return;
    }
    tile_begin -= tiles;
  }
}

namespace {

// Byte i of operand g of the lane at `codes`.
int code_at(WeightKind kind, const uint8_t* codes, int g, int i) {
  if (kind == kWeightQ8_0) return codes[128 * g + i];
  const int both = codes[128 * (g % 4) + i], low = g < 4 ? both & 15 : both >> 4;
  if (code_bytes(kind) == kCodeBytes5) return low | (codes[kCodeBytes4 + i] >> g & 1) << 4;
  if (code_bytes(kind) == kCodeBytes6) return low | (codes[kCodeBytes4 + 128 * (g / 4) + i] >> 2 * (g % 4) & 3) << 4;
  return low;
}

// Column c, input k of tile t.
float value_at(const MatrixView& v, const uint8_t* t, int c, int k) {
  const int pair = k / kBlockPair, b = k / kQuantBlock % 2, i = k % kQuantBlock;
  float x;
  switch (v.kind) {
    case kWeightF32:
      std::memcpy(&x, t + 4 * (i * kLanes + c), 4);
      return x;
    case kWeightBF16:
      return bf16_to_float(load_u16(t + 4 * (i / 2 * kLanes + c) + 2 * (i % 2)));
    default:
      break;
  }
  const uint8_t* codes = is_super(v.kind) ? t + kSuperHeader + pair * code_bytes(v.kind) : t;
  const auto code = code_at(v.kind, codes + lane_at(c, b), i / 4, i % 4);
  const uint8_t *scales = t + 64 + 64 * pair + lane_at(c, b) / 4, *numbers = t + code_bytes(v.kind) + lane_at(c, b) / 2;
  switch (v.kind) {
    case kWeightQ4_1:
    case kWeightQ5_1:
      return half_to_float(load_u16(numbers)) * static_cast<float>(code - middle_code(v.kind)) +
             bf16_to_float(load_u16(numbers + kPairNumbers));
    case kWeightQ6_K:
      return half_to_float(load_u16(t + 2 * c)) * static_cast<float>(static_cast<int8_t>(scales[i / 16 * 32])) *
             static_cast<float>(code - 32);
    case kWeightQ4_K:
    case kWeightQ5_K:
      return half_to_float(load_u16(t + 2 * c)) * static_cast<float>(scales[0]) * static_cast<float>(code) -
             half_to_float(load_u16(t + 32 + 2 * c)) * static_cast<float>(scales[32]);
    default:
      return half_to_float(load_u16(numbers)) * static_cast<float>(code - (v.kind == kWeightQ8_0   ? 128
                                                                           : v.kind == kWeightQ5_0 ? 16
                                                                                                   : 8));
  }
}

void unpack_part(const MatrixView& v, float* out) {
  const int width = tile_k(v.kind), depth = tiles_of(v.kind, v.k);
  for (int n = 0; n < v.n_true; n++)
    for (int k = 0; k < v.k; k++) {
      const size_t index = static_cast<size_t>(n / kLanes) * depth + k / width;
      out[static_cast<size_t>(n) * v.k + k] = value_at(v, v.tiles + index * tile_bytes(v.kind), n % kLanes, k % width);
    }
}

}  // namespace

void unpack_matrix(const PackedMatrix& matrix, float* out) {
  for (const MatrixView& part : matrix.parts) {
    unpack_part(part, out);
    out += static_cast<size_t>(part.n_true) * part.k;
  }
}

Embedding make_embedding(const PackSource& source, bool finite) {
  check(source);
  if (!finite) check_finite(source);
  return Embedding{source.ggml_type, source.data, source.n_rows, source.k};
}

void Embedding::row(int64_t index, float* out) const {
  dequantize(ggml_type, data + index * row_bytes(ggml_type, k), 0, k, out);
}

}  // namespace sixfold
