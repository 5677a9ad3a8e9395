// Which instruction set's kernels run here.
#pragma once

#include "attention.hpp"

namespace anychip {

const Kernels* chosen_kernels();
// by name; false: not built in, or this processor lacks it
bool choose_kernels(const char* name);

void attention(const AttentionArgs& args);

}  // namespace anychip
