// What the host hands to kernels, field by field as in ringmpi/backends/cuda/arguments.py, and which pairs meet.
#pragma once

#include "primitives.cuh"

namespace ringmpi {

// An array [batch, heads, length, columns]; strides in bytes, columns one after the other, rows at multiples of 16.
struct Array {
  const unsigned char* data;
  i64 batch_stride, head_stride, row_stride;

  DEVICE const unsigned char* slab(i64 batch, i64 head) const {
    return data + batch * batch_stride + head * head_stride;
  }
};

// A work item (core/work.py): the pairs inside the box with low <= position(key) - position(row) <= high.
struct Item {
  i64 row_start, row_stop, key_start, key_stop;
  i64 row_origin, row_stride, key_origin, key_stride;
  i64 low, high;

  DEVICE i64 row_position(i64 row) const { return row_origin + row_stride * row; }
  DEVICE i64 key_position(i64 key) const { return key_origin + key_stride * key; }
};

// The items that each block of rows meets, in table order: items[list[n]] for first[block] <= n < first[block + 1].
// `order` names the blocks, those with the most work first.
struct Work {
  const Item* items;
  const int *list, *first, *order;
};

// core/scoring.py. least: a pair is kept where its random word is not below it; 0: nothing is dropped.
struct Scoring {
  double scale, softcap;  // softcap 0: none
  const double* slopes;   // [query_heads], null: none
  u64 seed;
  double dropout_factor;
  u32 least;
};

struct Problem {
  Array q, k, v;
  Work work;
  Scoring scoring;
  i64 *attended;          // [grid][WARPS]: pairs that each warp attended to
  i64 queries, keys;
  int batch, query_heads, key_heads, head_dim, value_dim;
  int finite;             // 0: k or v hold NaN or inf
};

// The carried Partial (core/partial.py), in the dtype of sums; dense [batch, query_heads, queries (, value_dim)].
struct Forward {
  Problem problem;
  void *row_max, *row_sum, *weighted_sum;
};

// One launch of a backward call (core/gradients.py).
struct Backward {
  Problem problem;
  Array grad_output;
  const void *log_sum_exp, *delta;  // dense [batch, query_heads, queries], dtype of sums
  void *inner, *outer;              // dense gradients that are added to; null: not wanted
  double* slope;                    // [grid][WARPS]: of the slope of the head of the block; null: there is none
  int by_key;                       // whether blocks stand for keys
};

struct Span {
  i64 start, stop;
};

template <class T> DEVICE T least_of(T a, T b) { return a < b ? a : b; }
template <class T> DEVICE T most_of(T a, T b) { return a > b ? a : b; }
DEVICE i64 floor_div(i64 a, i64 b) { return b == 1 ? a : a / b - (a % b < 0); }  // b > 0
DEVICE i64 ceil_div(i64 a, i64 b) { return -floor_div(-a, b); }

// Keys that a row sees; both ends rise with the row. Empty: stop <= start.
DEVICE Span keys_of(const Item& item, i64 row) {
  const i64 origin = item.row_position(row) - item.key_origin;
  return {most_of(item.key_start, ceil_div(origin + item.low, item.key_stride)),
          least_of(item.key_stop, floor_div(origin + item.high, item.key_stride) + 1)};
}

}  // namespace ringmpi
