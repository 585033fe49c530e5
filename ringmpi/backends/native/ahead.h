// Rows that come next, on their way to the second-level cache while others are worked on. A few at a time: processors
// have room for a dozen or so lines that are under way, and then wait.
#pragma once

#include "abi.h"

namespace ringmpi {

struct Ahead {
  struct Stream {
    const Array* array;
    int64_t bytes;  // of a row
  };
  Stream streams[3];
  int64_t batch, head, heads, row, end;  // `heads` of them, row by row
  int64_t nth = 0;

  void step(int count) {
    for (int i = 0; i < count && row < end; ++i) {
      for (const Stream& stream : streams)
        for (int64_t byte = 0; byte < stream.bytes; byte += 64)
          __builtin_prefetch(stream.array->row(batch, head + nth, row) + byte, 0, 2);
      if (++nth == heads) nth = 0, ++row;
    }
  }
};

}  // namespace ringmpi
