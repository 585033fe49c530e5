// Which keys of a tile each of its rows sees, and the strips of HIGH rows that a product takes together.
#pragma once

#include "panels.h"
#include "work.h"

namespace ringmpi {

// Both at multiples of local index 0, so that the sums of a tile, and with them all bits, do not depend on the call.
constexpr int64_t TILE_ROWS = 96, TILE_KEYS = 192;
constexpr int64_t ROOM = TILE_ROWS + HIGH;  // the last strip may stand over

// The rows of a strip start at keys `start[0]` to `start[1]` and stop at keys `stop[0]` to `stop[1]`.
struct Strip {
  int32_t row, start[2], stop[2];
  bool full;  // all HIGH rows are real

  bool touches(int64_t key, int64_t end) const { return start[0] < end && stop[1] > key; }
  bool covers(int64_t key, int64_t end) const { return full && start[1] <= key && stop[0] >= end; }
};

// One work item in one tile; rows and keys counted from the tile's corner.
struct Sight {
  int64_t row, row_end, key, key_end;
  int32_t start[ROOM], stop[ROOM];  // of each row of the tile that counts; one that pads sees nothing: 0, 0
  Strip strips[TILE_ROWS / HIGH];
  int64_t strip_count;

  void look(const Item& item, int64_t first_row, int64_t first_key) {
    const bool whole = keys_of(item, first_row + row_end - 1).start <= first_key + key &&
                       keys_of(item, first_row + row).stop >= first_key + key_end;
    strip_count = 0;
    for (int64_t r = row; r < row_end; r += HIGH) {
      Strip& strip = strips[strip_count++];
      strip = {int32_t(r), {int32_t(key_end), int32_t(key)}, {int32_t(key_end), int32_t(key)}, r + HIGH <= row_end};
      for (int64_t i = r; i < r + HIGH; ++i) {
        if (i >= row_end) {
          start[i] = stop[i] = 0;
          continue;
        }
        Keys keys{first_key + key, first_key + key_end};
        if (!whole) keys = keys_of(item, first_row + i);
        start[i] = int32_t(std::clamp(keys.start - first_key, key, key_end));
        stop[i] = int32_t(std::clamp<int64_t>(keys.stop - first_key, start[i], key_end));
        strip.start[0] = std::min(strip.start[0], start[i]), strip.start[1] = std::max(strip.start[1], start[i]);
        strip.stop[0] = std::min(strip.stop[0], stop[i]), strip.stop[1] = std::max(strip.stop[1], stop[i]);
      }
    }
  }

  // Rows of the strips that touch [first, end): neighbours, as both ends of what a row sees rise with the row.
  Keys rows_that_touch(int64_t first, int64_t end) const {
    int64_t s = 0, e = strip_count;
    while (s < e && strips[s].stop[1] <= first) ++s;
    while (e > s && strips[e - 1].start[0] >= end) --e;
    if (s == e) return {0, 0};
    return {strips[s].row, std::min<int64_t>(row_end, strips[e - 1].row + HIGH)};
  }
};

}  // namespace ringmpi
