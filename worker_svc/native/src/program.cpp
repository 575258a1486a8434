// Program: a model's forward pass as a list of operations over numbered buffers, run by a team of threads.
//
// Python (program.py) writes the list once, when the model is loaded, and calls `tetrad_run` once per step. program.h keeps the
// list, run.h executes it. Python calls only the C functions of this file, of packing.h and of shared_*.h.
#include <system_error>

#include "packing.h"
#include "program.h"
#include "run.h"
#include "shared_orders.h"
#include "shared_sums.h"

using namespace tetrad;

extern "C" {

int32_t tetrad_lanes() { return LANES; }

// Whether products of split matrices can run on this machine; must be called before the first such product.
int32_t tetrad_has_split_products() { return has_split_products(); }

// Whether products in fixed point are faster than those of floats.
int32_t tetrad_has_fixed_products() { return HAS_FIXED_PRODUCTS; }

// Whether products of pairs can run on this machine.
int32_t tetrad_has_pair_products() { return has_pair_products(); }

// Create a team; null if the system cannot create so many threads.
Team* tetrad_team_new(int32_t size) {
  try {
    return new Team(size);
  } catch (const std::system_error&) {
    return nullptr;
  }
}
void tetrad_team_delete(Team* team) { delete team; }

int64_t tetrad_matrix_size_bytes(const Matrix* matrix) { return matrix->size_bytes(); }
int64_t tetrad_matrix_num_spans(const Team* team, const Matrix* matrix) { return Shares(*matrix, team->size()).spans; }
int64_t tetrad_prepared_size_bytes(const Matrix* matrix) { return prepared_bytes(*matrix); }

Program* tetrad_program_new(const Operation* operations, int64_t count, const int64_t* widths, int64_t num_buffers, Heads heads) {
  return new Program(operations, count, widths, num_buffers, heads);
}
void tetrad_program_delete(Program* program) { delete program; }

// Run a program for one step. Return SUMMED, or the cause why a sum over ranks failed.
int32_t tetrad_run(Team* team, Program* program, const Step* step, float* const* buffers, uint8_t* prepared) {
  Run run(*program, *step, buffers, prepared, *team);
  team->run([&](int rank) { run.work(rank); });
  return run.status();
}

}  // extern "C"
