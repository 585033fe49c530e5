// What a warp does at once: the fragments of primitives.cuh, matrix by matrix.
#include "fibers.h"

namespace emulator {
namespace {

template <class Own> const Own& of(void* const* lanes, int lane) { return *static_cast<const Own*>(lanes[lane]); }

int first_thread() { return block.current / LANES * LANES; }

// Two 16-bit elements of a register, as floats.
template <float (*WIDEN)(uint16_t)> void unpack(uint32_t both, float& low, float& high) {
  low = WIDEN(uint16_t(both)), high = WIDEN(uint16_t(both >> 16));
}

// Products of 16-bit numbers are exact in float; their sum over k is taken in float.
template <float (*WIDEN)(uint16_t)> void multiply_16(void* const* lanes) {
  float a[16][16], b[16][8], sums[16][8] = {};
  for (int lane = 0; lane < LANES; ++lane) {
    const auto& own = of<Multiply16>(lanes, lane);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      unpack<WIDEN>(own.a[2 * half], a[g][8 * half + 2 * t], a[g][8 * half + 2 * t + 1]);
      unpack<WIDEN>(own.a[2 * half + 1], a[g + 8][8 * half + 2 * t], a[g + 8][8 * half + 2 * t + 1]);
      unpack<WIDEN>(half ? own.b1 : own.b0, b[8 * half + 2 * t][g], b[8 * half + 2 * t + 1][g]);
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < LANES; ++lane) {
    const auto& own = of<Multiply16>(lanes, lane);
    for (int e = 0; e < 2; ++e) {
      own.top[e] += sums[lane / 4][2 * (lane % 4) + e];
      own.bottom[e] += sums[lane / 4 + 8][2 * (lane % 4) + e];
    }
  }
}

template <bool TRANSPOSED> void load(void* const* lanes, Place place) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t rows[8][8];
    for (int row = 0; row < 8; ++row) {
      const void* const from = of<Matrices>(lanes, 8 * matrix + row).row;
      if (reinterpret_cast<uintptr_t>(from) % 16) fail(place, "a row of a matrix needs an address at a multiple of 16");
      check_shared(from, 16, false, first_thread() + 8 * matrix + row, place);
      std::memcpy(rows[row], from, 16);
    }
    for (int lane = 0; lane < LANES; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const uint16_t low = TRANSPOSED ? rows[2 * t][g] : rows[g][2 * t], high = TRANSPOSED ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
      of<Matrices>(lanes, lane).to[matrix] = uint32_t(low) | uint32_t(high) << 16;
    }
  }
}

}  // namespace

void multiply_float16(void* const* lanes, Place) { multiply_16<from_float16>(lanes); }
void multiply_bfloat16(void* const* lanes, Place) { multiply_16<from_bfloat16>(lanes); }
void load_matrices(void* const* lanes, Place place) { load<false>(lanes, place); }
void load_matrices_transposed(void* const* lanes, Place place) { load<true>(lanes, place); }

void multiply_64(void* const* lanes, Place) {
  for (int lane = 0; lane < LANES; ++lane)
    for (int e = 0; e < 2; ++e) {
      double sum = of<Multiply64>(lanes, lane).sum[e];
      for (int k = 0; k < 4; ++k)
        sum = std::fma(of<Multiply64>(lanes, lane / 4 * 4 + k).a, of<Multiply64>(lanes, 4 * (2 * (lane % 4) + e) + k).b, sum);
      of<Multiply64>(lanes, lane).sum[e] = sum;
    }
}

void exchange(void* const* lanes, Place place) {
  for (int lane = 0; lane < LANES; ++lane) {
    const auto& own = of<Exchange>(lanes, lane);
    if (own.lane < 0 || own.lane >= LANES) fail(place, "lane %d asks for lane %d", lane, own.lane);
    std::memcpy(own.to, of<Exchange>(lanes, own.lane).from, size_t(own.bytes));
  }
}

float from_float16(uint16_t bits) {
  _Float16 x;
  std::memcpy(&x, &bits, 2);
  return float(x);
}
float from_bfloat16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}
uint16_t to_float16(float x) {
  const _Float16 narrow = _Float16(x);
  uint16_t bits;
  std::memcpy(&bits, &narrow, 2);
  return bits;
}
// To nearest even; NaN stays NaN.
uint16_t to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return x != x ? uint16_t(0x7fff) : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace emulator
