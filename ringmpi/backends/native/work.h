// Work items (core/work.py): which local rows see which local keys, in exact 64-bit integers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ringmpi {

// One row of the table. Local row u stands at position row_origin + row_stride u, local key v likewise; the pairs
// are those inside the box with low <= position(v) - position(u) <= high.
struct Item {
  int64_t row_start, row_stop, key_start, key_stop;
  int64_t row_origin, row_stride, key_origin, key_stride;
  int64_t low, high;

  int64_t row_position(int64_t row) const { return row_origin + row_stride * row; }
  int64_t key_position(int64_t key) const { return key_origin + key_stride * key; }
};

inline int64_t floor_div(int64_t a, int64_t b) { return b == 1 ? a : a / b - (a % b < 0); }  // b > 0
inline int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

// First and one-past-last key. Both rise with the row. Empty: stop <= start.
struct Keys {
  int64_t start, stop;
};

inline Keys keys_of(const Item& item, int64_t row) {
  const int64_t origin = item.row_position(row) - item.key_origin;
  return {std::max(item.key_start, ceil_div(origin + item.low, item.key_stride)),
          std::min(item.key_stop, floor_div(origin + item.high, item.key_stride) + 1)};
}

}  // namespace ringmpi
