// Forward attention: see forward.cpp.
#pragma once

#include "abi.h"

namespace ringmpi {

class Engine;

// Absorbs the pairs of call.problem.work into the carried Partial. False: the poll asked to stop; the Partial is then
// of no use.
bool attend(Engine& engine, Forward& call);

}  // namespace ringmpi
