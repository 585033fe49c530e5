// What a warp does at once: the fragments of primitives.cuh, matrix by matrix.
#include "fibers.h"

#include <algorithm>
#include <bit>

namespace emulator {
namespace {

template <class Own> const Own& of(void* const* lanes, int lane) { return *static_cast<const Own*>(lanes[lane]); }

int first_thread() { return block.current / LANES * LANES; }

// Two 16-bit elements of a register, as floats.
template <float (*WIDEN)(uint16_t)> void unpack(uint32_t both, float& low, float& high) {
  low = WIDEN(uint16_t(both)), high = WIDEN(uint16_t(both >> 16));
}

// How tensor cores add products of 16 bit, as measured; the manual says no more than that sums are in float32. AT_ONCE of
// them and the sum so far are aligned to the largest exponent, cut off EXTRA bits below the last one that a float of this
// exponent has, and added exactly; what comes of it is cut off, too. So a sum stays below, by more with each step. The
// numbers are those of the A100, the harsher ones: the H100 takes 16 at once and keeps 2 bits. Fasi et al. 2021, "Numerical
// behavior of NVIDIA tensor cores", PeerJ CS 7:e330; Khattak and Mikaitis 2025, arXiv 2512.07004.
constexpr int AT_ONCE = 8, EXTRA = 1;
constexpr int LEAST_EXPONENT = -126, NO_EXPONENT = -999;  // of a float; of zero, which aligns nothing

double power_of_2(int exponent) { return std::bit_cast<double>(uint64_t(1023 + exponent) << 52); }
int exponent_of(float x) { return x == 0 ? NO_EXPONENT : int(std::bit_cast<uint32_t>(x) >> 23 & 255) - 127; }
float cut_off(double x) {
  const float near = float(x);
  return std::isfinite(near) && std::fabs(near) > std::fabs(x) ? std::nextafter(near, 0.0f) : near;
}

// sums[column] += sum_k a[k] b[k][column], of AT_ONCE numbers k.
void add_products(float (&sums)[8], const float* a, const float (*b)[8]) {
  double plain[8], products[AT_ONCE][8], units[8], found[8];  // units: so many of the last bit that is kept are 1
  int top[8];
  for (int c = 0; c < 8; ++c) plain[c] = sums[c], top[c] = std::max(exponent_of(sums[c]), LEAST_EXPONENT);
  for (int k = 0; k < AT_ONCE; ++k) {
    const int own = exponent_of(a[k]);
    for (int c = 0; c < 8; ++c) {
      plain[c] += products[k][c] = double(a[k]) * b[k][c];
      top[c] = std::max(top[c], own + exponent_of(b[k][c]));
    }
  }
  for (int c = 0; c < 8; ++c) units[c] = power_of_2(23 + EXTRA - top[c]), found[c] = std::trunc(sums[c] * units[c]);
  for (int k = 0; k < AT_ONCE; ++k)
    for (int c = 0; c < 8; ++c) found[c] += std::trunc(products[k][c] * units[c]);
  for (int c = 0; c < 8; ++c) sums[c] = std::isfinite(plain[c]) ? cut_off(found[c] / units[c]) : float(plain[c]);
}

template <float (*WIDEN)(uint16_t)> void multiply_16(void* const* lanes) {
  float a[16][16], b[16][8], sums[16][8];
  for (int lane = 0; lane < LANES; ++lane) {
    const auto& own = of<Multiply16>(lanes, lane);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      unpack<WIDEN>(own.a[2 * half], a[g][8 * half + 2 * t], a[g][8 * half + 2 * t + 1]);
      unpack<WIDEN>(own.a[2 * half + 1], a[g + 8][8 * half + 2 * t], a[g + 8][8 * half + 2 * t + 1]);
      unpack<WIDEN>(half ? own.b1 : own.b0, b[8 * half + 2 * t][g], b[8 * half + 2 * t + 1][g]);
    }
    for (int e = 0; e < 2; ++e) sums[g][2 * t + e] = own.top[e], sums[g + 8][2 * t + e] = own.bottom[e];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; k += AT_ONCE) add_products(sums[row], a[row] + k, b + k);
  for (int lane = 0; lane < LANES; ++lane) {
    const auto& own = of<Multiply16>(lanes, lane);
    const int g = lane / 4, t = lane % 4;
    for (int e = 0; e < 2; ++e) own.top[e] = sums[g][2 * t + e], own.bottom[e] = sums[g + 8][2 * t + e];
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
