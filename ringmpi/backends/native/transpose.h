// Rows to columns, in registers: blocks of K x K scalars by log2 K rounds of exchanges, the rest one by one.
#pragma once

#include <cstring>
#include <utility>

#include "simd.h"

namespace ringmpi {

template <class T, int K> struct Square {
  typedef T Row __attribute__((vector_size(K * sizeof(T))));
  typedef Integer<T> Places __attribute__((vector_size(K * sizeof(T))));

  // Lane j of x or, from K on, of y.
  template <int... J> static RINGMPI_INLINE Row pick(Row x, Row y, std::integer_sequence<int, J...>) {
#ifdef __clang__
    return __builtin_shufflevector(x, y, J...);
#else
    return __builtin_shuffle(x, y, Places{J...});
#endif
  }
  // Of two rows H apart: the upper right of the one changes places with the lower left of the other.
  template <int H, int... J> static RINGMPI_INLINE void exchange(Row& x, Row& y, std::integer_sequence<int, J...>) {
    const Row upper = pick(x, y, std::integer_sequence<int, (J & H ? K + J - H : J)...>{});
    y = pick(x, y, std::integer_sequence<int, (J & H ? K + J : J + H)...>{});
    x = upper;
  }
  template <int H> static RINGMPI_INLINE void rounds(Row (&row)[K]) {
    if constexpr (H > 0) {
#pragma GCC unroll 16
      for (int i = 0; i < K; ++i)
        if (!(i & H)) exchange<H>(row[i], row[i + H], std::make_integer_sequence<int, K>{});
      rounds<H / 2>(row);
    }
  }
  // from(i), to(i): addresses of the rows of the square before and after.
  template <class From, class To> static RINGMPI_INLINE void transpose(From from, To to, T factor) {
    Row row[K];
#pragma GCC unroll 16
    for (int i = 0; i < K; ++i) std::memcpy(&row[i], from(i), sizeof(Row));
    rounds<K / 2>(row);
#pragma GCC unroll 16
    for (int i = 0; i < K; ++i) {
      const Row scaled = row[i] * factor;
      std::memcpy(to(i), &scaled, sizeof(Row));
    }
  }
};

// *to(c, r) = factor *from(r, c) in blocks of K; from(r, c) ... from(r, c + K - 1) and to(c, r) ... lie side by side.
template <class T, int K, class From, class To>
RINGMPI_INLINE void transpose_blocks(From from, To to, int64_t rows, int64_t columns, T factor) {
  const int64_t whole_rows = rows / K * K, whole_columns = columns / K * K;
  for (int64_t r = 0; r < whole_rows; r += K)
    for (int64_t c = 0; c < whole_columns; c += K)
      Square<T, K>::transpose([&](int i) { return from(r + i, c); }, [&](int i) { return to(c + i, r); }, factor);
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r) *to(c, r) = factor * *from(r, c);
}

// to[c to_step + r] = factor from[r from_step + c]
template <class T, int K = LANES<T>>
inline void transpose(const T* from, int64_t from_step, int64_t rows, int64_t columns, T* to, int64_t to_step,
                      T factor = T(1)) {
  transpose_blocks<T, K>([&](int64_t r, int64_t c) { return from + r * from_step + c; },
                         [&](int64_t c, int64_t r) { return to + c * to_step + r; }, rows, columns, factor);
}

// to[c to_step + r] = factor from[r][c]
template <class T, int K = LANES<T>>
inline void gather_rows(const T* const* from, int64_t rows, int64_t columns, T* to, int64_t to_step, T factor = T(1)) {
  transpose_blocks<T, K>([&](int64_t r, int64_t c) { return from[r] + c; },
                         [&](int64_t c, int64_t r) { return to + c * to_step + r; }, rows, columns, factor);
}

// to[r][c] = from[c from_step + r]
template <class T, int K = LANES<T>>
inline void scatter_rows(const T* from, int64_t from_step, int64_t rows, int64_t columns, T* const* to) {
  transpose_blocks<T, K>([&](int64_t c, int64_t r) { return from + c * from_step + r; },
                         [&](int64_t r, int64_t c) { return to[r] + c; }, columns, rows, T(1));
}

}  // namespace ringmpi
