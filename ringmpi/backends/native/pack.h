// Packing: rows of any layout and of 16 bits too, to the panels of aligned scalars that microkernel.h reads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "abi.h"
#include "microkernel.h"
#include "transpose.h"

namespace ringmpi {

RINGMPI_INLINE float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// float16 by integers and one exact product: its exponent moved to that of float32 (2^112 between them).
RINGMPI_INLINE float from_float16(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, rest = uint32_t(half & 0x7fff) << 13;
  const uint32_t special = rest >= 0x0f800000u ? 0x7f800000u : 0u;  // inf and NaN
  uint32_t bits;
  const float scaled = from_bits(rest) * 0x1p112f;
  std::memcpy(&bits, &scaled, sizeof bits);
  return from_bits(bits | special | sign);
}
RINGMPI_INLINE float from_bfloat16(uint16_t bits) { return from_bits(uint32_t(bits) << 16); }

template <class Raw, class T, class Convert>
RINGMPI_INLINE void convert_row(const char* from, int64_t step, int64_t count, T* to, Convert convert) {
  if (step == int64_t(sizeof(Raw))) {
    for (int64_t i = 0; i < count; ++i) {
      Raw raw;
      std::memcpy(&raw, from + i * int64_t(sizeof(Raw)), sizeof raw);
      to[i] = T(convert(raw));
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      Raw raw;
      std::memcpy(&raw, from + i * step, sizeof raw);
      to[i] = T(convert(raw));
    }
  }
}

// `count` scalars from `from` on, `step` bytes apart, of any Dtype.
template <class T> inline void widen(const char* from, int64_t step, int64_t count, int64_t dtype, T* to) {
  switch (dtype) {
    case FLOAT16: return convert_row<uint16_t>(from, step, count, to, from_float16);
    case BFLOAT16: return convert_row<uint16_t>(from, step, count, to, from_bfloat16);
    case FLOAT32: return convert_row<float>(from, step, count, to, [](float x) { return x; });
    default: return convert_row<double>(from, step, count, to, [](double x) { return x; });
  }
}

// The dtype of sums, and the other way.
template <class T> constexpr int64_t DTYPE = sizeof(T) == 8 ? FLOAT64 : FLOAT32;

template <class T> inline void narrow(const T* from, int64_t count, char* to, int64_t step) {
  if (step == int64_t(sizeof(T))) {
    std::memcpy(to, from, size_t(count) * sizeof(T));
  } else {
    for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * step, from + i, sizeof(T));
  }
}

// Asks for `count` scalars from `from` on, before they are read.
template <class T> inline void prefetch(const char* from, int64_t count) {
  for (int64_t at = 0; at < count * int64_t(sizeof(T)); at += 64) __builtin_prefetch(from + at);
}

inline int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

// Whether scalars `step` bytes apart can be used where they lie.
template <class T> inline bool lies_as(const char* at, int64_t step) {
  return step == int64_t(sizeof(T)) && reinterpret_cast<uintptr_t>(at) % sizeof(T) == 0;
}

// `count` scalars from `from` on: where they lie if they lie there as T, else widened to `wide`.
template <class T> inline const T* read(const char* from, int64_t step, int64_t count, int64_t dtype, T* wide) {
  if (dtype == DTYPE<T> && lies_as<T>(from, step)) return reinterpret_cast<const T*>(from);
  widen(from, step, count, dtype, wide);
  return wide;
}

// Keys as rows of broadcasts: to[block][c][ROWS], block after block of ROWS keys; zeros fill the last one.
// Read by multiply_panels with depth over c. row(i, wide): the `dim` scalars of key i, in `wide` if need be.
// `wide`: scratch of ROWS x dim.
template <class T, class Row> inline void pack_rows(Row row, int64_t count, int64_t dim, T* wide, T* to) {
  const T* rows[ROWS];
  for (int64_t first = 0; first < count; first += ROWS, to += ROWS * dim) {
    for (int64_t r = 0; r < ROWS; ++r) {
      T* const spare = wide + r * dim;
      if (first + r >= count) std::fill(spare, spare + dim, T(0));
      rows[r] = first + r < count ? row(first + r, spare) : spare;
    }
    gather_rows<T, ROWS>(rows, ROWS, dim, to, ROWS);
  }
}

// Keys as depth: to[block][k][ROWS], block after block of ROWS columns; zeros fill the last block and, up to `depth`,
// the keys that are missing. Read by multiply_panels with depth over k. `wide`: scratch of `dim`.
template <class T, class Row>
inline void pack_columns(Row row, int64_t count, int64_t depth, int64_t dim, T* wide, T* to) {
  const int64_t whole = dim / ROWS * ROWS;
  for (int64_t k = 0; k < depth; ++k, to += ROWS) {
    if (k == count) std::fill(wide, wide + dim, T(0));
    const T* const from = k < count ? row(k, wide) : wide;
    for (int64_t c = 0; c < whole; c += ROWS) std::memcpy(to + c * depth, from + c, ROWS * sizeof(T));
    if (whole < dim) {
      std::memcpy(to + whole * depth, from + whole, size_t(dim - whole) * sizeof(T));
      std::fill(to + whole * depth + (dim - whole), to + whole * depth + ROWS, T(0));
    }
  }
}

// 0 in place of NaN and inf; whether there was any.
template <class T> inline bool clean(T* x, int64_t count) {
  bool any = false;
  for (int64_t i = 0; i < count; ++i)
    if (!std::isfinite(x[i])) x[i] = 0, any = true;
  return any;
}

}  // namespace ringmpi
