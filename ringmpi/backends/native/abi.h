// What Python and the kernels hand each other: plain structs, mirrored field by field in shared_library.py.
#pragma once

#include <cstdint>

namespace ringmpi {

enum Dtype : int64_t { FLOAT16, BFLOAT16, FLOAT32, FLOAT64 };

// An array of up to four axes; strides in bytes, of any sign.
struct Array {
  char* data;
  int64_t stride[4];  // batch, head, row, column

  char* row(int64_t batch, int64_t head, int64_t index) const {
    return data + batch * stride[0] + head * stride[1] + index * stride[2];
  }
};

// What forward and backward calls share: q, k, v, which pairs meet (core/work.py), and scores (core/scoring.py).
struct Problem {
  Array q, k, v;
  int64_t dtype;  // of q, k, v; sums are float64 for FLOAT64, else float32
  int64_t batch, query_heads, key_heads, queries, keys, head_dim, value_dim;
  const int64_t* work;  // [items][10]
  int64_t items;
  double scale, softcap;           // softcap: 0 for none
  const double* slopes;            // [query_heads], null for none
  uint64_t dropout_least, seed;    // a pair is kept where its word >= dropout_least; 0: nothing is dropped
  double dropout_factor;           // of what is kept
  int64_t finite;                  // 0: k or v hold NaN or inf
  int (*poll)();                   // null, or called by the calling thread every millisecond or so; not 0: stop
  int64_t attended;                // out: pairs, over batch and query heads

  int64_t group() const { return query_heads / key_heads; }
};

// The carried record of rows (core/record.py); all without data where rows are not recorded.
struct Record {
  Array score_sum, distance_sum, sink_sum;  // in the dtype of sums
  Array top_key;                            // int64
  int64_t sinks;                            // keys at positions below it are in sink_sum

  bool wanted() const { return top_key.data; }
};

struct Forward {
  Problem problem;
  Array row_max, row_sum, weighted_sum;  // the carried Partial, in the dtype of sums
  Record record;
};

}  // namespace ringmpi
