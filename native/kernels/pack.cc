#include "pack.h"

#include <cstring>
#include <stdexcept>

namespace sixfold {
namespace {

constexpr int kBlockBytesQ4_1 = 20;  // d, m, 16 bytes of nibbles
constexpr int kBlockBytesQ8_0 = 34;  // d, 32 codes

uint16_t load_u16(const uint8_t* p) {
  uint16_t x;
  std::memcpy(&x, p, 2);
  return x;
}

struct PackJob {
  const PackSource* sources;
  int n_sources;
  bool interleave;
  WeightKind kind;
  int32_t n_tiles, k;
  uint8_t *tiles, *scales;
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

void pack_q4_1(const uint8_t* const rows[kLanes], int block, uint8_t* out) {
  for (int c = 0; c < kLanes; c++) {
    static const uint8_t kZero[kBlockBytesQ4_1] = {};
    const uint8_t* b = rows[c] ? rows[c] + static_cast<size_t>(block) * kBlockBytesQ4_1 : kZero;
    for (int g = 0; g < 4; g++) std::memcpy(out + 64 * g + 4 * c, b + 4 + 4 * g, 4);
    std::memcpy(out + 256 + 2 * c, b, 2);
    std::memcpy(out + 288 + 2 * c, b + 2, 2);
  }
}

void pack_q8_0(const uint8_t* const rows[kLanes], int block, uint8_t* out, uint8_t* scales) {
  for (int c = 0; c < kLanes; c++) {
    static const uint8_t kZero[kBlockBytesQ8_0] = {};
    const uint8_t* b = rows[c] ? rows[c] + static_cast<size_t>(block) * kBlockBytesQ8_0 : kZero;
    for (int g = 0; g < 8; g++) {
      uint32_t quad;
      std::memcpy(&quad, b + 2 + 4 * g, 4);
      quad ^= 0x80808080u;  // q + 128
      std::memcpy(out + 64 * g + 4 * c, &quad, 4);
    }
    std::memcpy(scales + 2 * c, b, 2);
  }
}

void pack_f16(const uint8_t* const rows[kLanes], int block, uint8_t* out) {
  for (int c = 0; c < kLanes; c++)
    for (int i = 0; i < kQuantBlock; i++) {
      const uint16_t x = rows[c] ? load_u16(rows[c] + 2 * (static_cast<size_t>(block) * kQuantBlock + i)) : 0;
      std::memcpy(out + 2 * (i * kLanes + c), &x, 2);
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

size_t tile_bytes(WeightKind kind) {
  switch (kind) {
    case kWeightQ4_1:
      return kTileBytesQ4_1;
    case kWeightQ8_0:
      return kTileBytesQ8_0;
    case kWeightF16:
      return size_t{2} * kLanes * kQuantBlock;
    case kWeightF32:
      return size_t{4} * kLanes * kQuantBlock;
  }
  return 0;
}

constexpr int kTilesPerChunk = 4;

void pack_chunk(void* arg, const void*, int chunk, int) {
  const PackJob& job = *static_cast<const PackJob*>(arg);
  const int blocks = job.k / kQuantBlock;
  const size_t size = tile_bytes(job.kind);
  for (int tile = chunk * kTilesPerChunk; tile < (chunk + 1) * kTilesPerChunk && tile < job.n_tiles; tile++) {
    const uint8_t* rows[kLanes];
    int type;
    tile_rows(job, tile, rows, &type);
    for (int b = 0; b < blocks; b++) {
      const size_t index = static_cast<size_t>(tile) * blocks + b;
      uint8_t* out = job.tiles + index * size;
      switch (job.kind) {
        case kWeightQ4_1:
          pack_q4_1(rows, b, out);
          break;
        case kWeightQ8_0:
          pack_q8_0(rows, b, out, job.scales + index * kScaleBytesQ8_0);
          break;
        case kWeightF16:
          pack_f16(rows, b, out);
          break;
        case kWeightF32:
          pack_f32(rows, type, b, out);
          break;
      }
    }
  }
}

WeightKind kind_of(int ggml_type) {
  switch (ggml_type) {
    case kGgmlQ4_1:
      return kWeightQ4_1;
    case kGgmlQ8_0:
      return kWeightQ8_0;
    case kGgmlF16:
      return kWeightF16;
    default:
      return kWeightF32;
  }
}

void check(const PackSource& s) {
  const size_t stride = row_bytes(s.ggml_type, s.k);
  if (stride == 0) throw std::invalid_argument("tensor type " + std::to_string(s.ggml_type) + " has no kernel");
  if (s.k <= 0 || s.k % kQuantBlock != 0 || s.k > (1 << 24))
    throw std::invalid_argument("a matrix needs a multiple of 32 inputs, not " + std::to_string(s.k));
  if (s.n_rows <= 0 || s.n_rows > (1 << 28)) throw std::invalid_argument("a matrix needs at least one row");
  if (s.bytes != static_cast<size_t>(s.n_rows) * stride)
    throw std::invalid_argument("a tensor of " + std::to_string(s.n_rows) + " x " + std::to_string(s.k) + " has " +
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

size_t row_bytes(int ggml_type, int64_t k) {
  switch (ggml_type) {
    case kGgmlF32:
      return 4 * k;
    case kGgmlF16:
      return 2 * k;
    case kGgmlQ4_1:
      return k / kQuantBlock * kBlockBytesQ4_1;
    case kGgmlQ8_0:
      return k / kQuantBlock * kBlockBytesQ8_0;
    default:
      return 0;
  }
}

void dequantize(int ggml_type, const uint8_t* row, int64_t begin, int64_t end, float* out) {
  for (int64_t i = begin; i < end; i += kQuantBlock, out += kQuantBlock) {
    const int64_t block = i / kQuantBlock;
    if (ggml_type == kGgmlF32) {
      std::memcpy(out, row + 4 * i, 4 * kQuantBlock);
    } else if (ggml_type == kGgmlF16) {
      for (int j = 0; j < kQuantBlock; j++) out[j] = half_to_float(load_u16(row + 2 * (i + j)));
    } else if (ggml_type == kGgmlQ4_1) {
      const uint8_t* b = row + block * kBlockBytesQ4_1;
      const float d = half_to_float(load_u16(b)), m = half_to_float(load_u16(b + 2));
      for (int j = 0; j < 16; j++) {
        out[j] = d * static_cast<float>(b[4 + j] & 15) + m;
        out[j + 16] = d * static_cast<float>(b[4 + j] >> 4) + m;
      }
    } else {
      const uint8_t* b = row + block * kBlockBytesQ8_0;
      const float d = half_to_float(load_u16(b));
      for (int j = 0; j < kQuantBlock; j++) out[j] = d * static_cast<float>(static_cast<int8_t>(b[2 + j]));
    }
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
              nullptr};
  const int n_chunks = (job.n_tiles + kTilesPerChunk - 1) / kTilesPerChunk;
  if (n_chunks > kMaxChunks) throw std::invalid_argument("a matrix has at most 3.8 million rows");
  const size_t tiles = static_cast<size_t>(job.n_tiles) * (job.k / kQuantBlock);
  const size_t scale_bytes = kind == kWeightQ8_0 ? tiles * kScaleBytesQ8_0 : 0;
  job.tiles = arena.allocate(tiles * tile_bytes(kind));
  if (scale_bytes) job.scales = arena.allocate(scale_bytes);
  pool.run({Phase{pack_chunk, nullptr, n_chunks}}, &job);
  *bytes += tiles * tile_bytes(kind) + scale_bytes;
  return MatrixView{kind, job.n_tiles * kLanes, static_cast<int32_t>(n), job.k, job.tiles, job.scales};
}

std::shared_ptr<PackedMatrix> pack_matrix(const std::vector<PackSource>& sources, bool interleave,
                                          bool float_activations, ThreadPool& pool, std::shared_ptr<Arena> arena) {
  if (sources.empty()) throw std::invalid_argument("a matrix needs at least one tensor");
  bool same = true, plain = float_activations;
  for (size_t i = 0; i < sources.size(); i++) {
    const PackSource& s = sources[i];
    check(s);
    if (s.k != sources[0].k) throw std::invalid_argument("tensors of one matrix need equal numbers of inputs");
    if (interleave && (s.n_rows != sources[0].n_rows || s.n_rows % kLanes != 0))
      throw std::invalid_argument("interleaved tensors need equal numbers of rows, a multiple of 16");
    if (i + 1 < sources.size() && s.n_rows % kLanes != 0)
      throw std::invalid_argument("a tensor that another follows needs a multiple of 16 rows");
    same = same && s.ggml_type == sources[0].ggml_type;
    plain = plain || act_kind(kind_of(s.ggml_type)) == kActFloat;
  }
  plain = plain || (interleave && !same);
  const auto kind = [&](const PackSource& s) {
    const WeightKind own = kind_of(s.ggml_type);
    return (plain && act_kind(own) == kActInt8) || (interleave && !same) ? kWeightF32 : own;
  };

  auto matrix = std::make_shared<PackedMatrix>();
  matrix->act = plain ? kActFloat : kActInt8;
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
            int tile_begin, int n_tiles, float* out, int ldo) {
  for (const MatrixView& part : w.parts) {
    const int tiles = part.n / kLanes, some = tiles - tile_begin < n_tiles ? tiles - tile_begin : n_tiles;
    if (some > 0) {
      kernels.matmul(&part, act, row_begin, n_rows, tile_begin, some, out, ldo);
      out += some * kLanes, n_tiles -= some, tile_begin += some;
      if (!n_tiles) return;
    }
    tile_begin -= tiles;
  }
}

namespace {

void unpack_part(const MatrixView& v, float* out) {
  const int blocks = v.k / kQuantBlock;
  for (int n = 0; n < v.n_true; n++)
    for (int k = 0; k < v.k; k++) {
      const size_t index = static_cast<size_t>(n / kLanes) * blocks + k / kQuantBlock;
      const int c = n % kLanes, i = k % kQuantBlock;
      const uint8_t* t = v.tiles + index * tile_bytes(v.kind);
      float x = 0;
      if (v.kind == kWeightQ4_1) {
        const uint8_t byte = t[64 * (i % 16 / 4) + 4 * c + i % 4];
        x = half_to_float(load_u16(t + 256 + 2 * c)) * static_cast<float>(i < 16 ? byte & 15 : byte >> 4) +
            half_to_float(load_u16(t + 288 + 2 * c));
      } else if (v.kind == kWeightQ8_0) {
        x = half_to_float(load_u16(v.scales + index * kScaleBytesQ8_0 + 2 * c)) *
            static_cast<float>(t[64 * (i / 4) + 4 * c + i % 4] - 128);
      } else if (v.kind == kWeightF16) {
        x = half_to_float(load_u16(t + 2 * (i * kLanes + c)));
      } else {
        std::memcpy(&x, t + 4 * (i * kLanes + c), 4);
      }
      out[static_cast<size_t>(n) * v.k + k] = x;
    }
}

}  // namespace

void unpack_matrix(const PackedMatrix& matrix, float* out) {
  for (const MatrixView& part : matrix.parts) {
    unpack_part(part, out);
    out += static_cast<size_t>(part.n_true) * part.k;
  }
}

Embedding make_embedding(const PackSource& source) {
  check(source);
  return Embedding{source.ggml_type, source.data, source.n_rows, source.k};
}

void Embedding::row(int64_t index, float* out) const {
  dequantize(ggml_type, data + index * row_bytes(ggml_type, k), 0, k, out);
}

}  // namespace sixfold
