// The stand-ins for FuriosaAI's runtimes: what their EDF is, and how they misbehave.
//
// FAKE_RNGD_COMPUTE  the program that computes (fake_rngd_compute)
// FAKE_RNGD_THREADS  its threads; 1 without it
// FAKE_RNGD_MODE     one of the misbehaviours below
// FAKE_RNGD_ONLY     it concerns parts whose EDF contains this; all without it
// FAKE_RNGD_CALL     it concerns this call of such a part, counted from 1; all without it
// FAKE_RNGD_MEMORY   bytes of a card
//
//   abort_load  refuse_load  hang_load        loading a part
//   fail_run                                  one call fails, the card still works
//   poison                                    a call times out and nothing works after it
//   hang_run  kill_run  abort_run             the worker never answers, is killed, aborts
//   freeze_run                                the whole worker stops, beats too
//   garbage_run                               writes nonsense into every socket that it has
//   noisy_run  slow_run                       prints much, takes two seconds
//   wrong_values                              gives zeros
//   slow_open  hang_open                      takes a second, takes for ever
// and in Python only
//   memory_load                               no memory for the part's stack
//   few_outputs  wrong_result                 a call gives fewer, or shorter ones
//   wrong_shape  no_views                     ports have other sizes; tensors have no view()
#pragma once

#include <string_view>

namespace npu {

inline constexpr std::string_view kFakeEdf = "fake EDF of ";  // then the part as a graph's text

}  // namespace npu
