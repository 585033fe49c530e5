// The backward kernel's arguments; backward.cpp has the formula.
#pragma once

#include "abi.h"

namespace ringmpi {

struct Backward {
  Problem problem;
  Array grad_output;         // dtype of q
  Array log_sum_exp, delta;  // dtype of sums, as are the gradients
  Array query, key, value;   // gradients, added to; null: not asked for
  double* slope;             // [query_heads], written: gradients of the ALiBi slopes, where query or key is asked for
};

class Engine;

// Adds the gradients of the pairs of call.problem.work. False: the poll asked to stop; they are of no use then.
bool attend_backward(Engine& engine, Backward& call);

}  // namespace ringmpi
