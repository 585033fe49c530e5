// The product that everything is made of, on registers alone:
//
//   acc[i][v] += sum_k a[i next + k step] b[k b_step + v LANES ...]        i < ROWS, v < VECS, k ascending
//
// `a` is read scalar by scalar and broadcast, `b` in vectors. Every element has one sum, over k in ascending order: its
// bits depend neither on ROWS and VECS nor on its place among the others.
#pragma once

#include "simd.h"

namespace ringmpi {

#if defined(__AVX512F__) || defined(__aarch64__)  // 32 registers: 24 sums, 3 vectors of b, broadcasts
constexpr int ROWS = 8;
#else  // 16 registers: 12 sums
constexpr int ROWS = 4;
#endif
constexpr int VECS = 3;
template <class T> constexpr int STRIP = VECS * LANES<T>;  // rows of queries side by side in lanes

template <class T, int R, int N>
RINGMPI_INLINE void clear(Vec<T> (&acc)[R][N]) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) acc[i][v] = Vec<T>{};
}

template <class T, int R, int N>
RINGMPI_INLINE void multiply(const T* a, int64_t next, int64_t step, const T* b, int64_t b_step, int64_t depth,
                             Vec<T> (&acc)[R][N]) {
  for (int64_t k = 0; k < depth; ++k, a += step, b += b_step) {
    Vec<T> row[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) row[v] = load(b + v * LANES<T>);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vec<T> x = broadcast(a[i * next]);
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) acc[i][v] += x * row[v];
    }
  }
}

// Panels of ROWS rows: at[n apart + i next + k step] is row i of panel n at depth k. As pack.h leaves them, or rows or
// columns of an array where it lies, `between` scalars from row to row.
template <class T> struct Packed {
  const T* at;
  int64_t apart;
  static constexpr int64_t next = 1, step = ROWS;

  void ask(int64_t) const {}
};
// While a panel is read, the panel after the next is asked for, and so are as many rows of `soon`: what the next
// product will read.
template <class T> struct InRows {
  InRows(const T* from, int64_t between, const T* after, int64_t between_after)
      : at(from), soon(after), apart(between * ROWS), next(between), soon_apart(between_after * ROWS) {}
  const T *at, *soon;
  int64_t apart, next, soon_apart;
  static constexpr int64_t step = 1;

  void ask(int64_t k) const {  // `at` is k scalars into the panel
    __builtin_prefetch(at + 2 * apart + k * (ROWS - 1));
    __builtin_prefetch(soon + k * ROWS);
  }
};
template <class T> struct InColumns {
  InColumns(const T* from, int64_t between) : at(from), step(between) {}
  const T* at;
  int64_t step;
  static constexpr int64_t apart = ROWS, next = 1;

  void ask(int64_t) const {}
};

// From panel n and depth k on.
template <class Source> RINGMPI_INLINE Source moved(Source panels, int64_t n, int64_t k = 0) {
  panels.at += n * panels.apart + k * panels.step;
  return panels;
}
template <class T> RINGMPI_INLINE InRows<T> moved(InRows<T> panels, int64_t n) {
  panels.at += n * panels.apart, panels.soon += n * panels.soon_apart;
  return panels;
}

// The product of P panels at once, for COUNT vectors from FIRST on.
template <class T, int P, int FIRST, int COUNT, class Source, int N>
RINGMPI_INLINE void multiply_panels(Source a, const T* b, int64_t b_step, int64_t depth, Vec<T> (&acc)[P * ROWS][N]) {
  for (int64_t k = 0; k < depth; ++k, a.at += a.step, b += b_step) {
    Vec<T> row[COUNT];
#pragma GCC unroll 4
    for (int v = 0; v < COUNT; ++v) row[v] = load(b + (FIRST + v) * LANES<T>);
    a.ask(k);
#pragma GCC unroll 16
    for (int i = 0; i < P * ROWS; ++i) {
      const Vec<T> x = broadcast(a.at[i / ROWS * a.apart + i % ROWS * a.next]);
#pragma GCC unroll 4
      for (int v = 0; v < COUNT; ++v) acc[i][FIRST + v] += x * row[v];
    }
  }
}

}  // namespace ringmpi
