//go:build cgo

// Package ibvstub is a driver of libibverbs without a device, to test and measure the calls of
// package ibv into C.
package ibvstub

// #include <stdlib.h>
// #include "stub.h"
import "C"

import "unsafe"

// Stub is a queue pair, a shared receive queue and a completion queue.
type Stub struct{ c *C.struct_vb_stub }

// New makes a Stub, to be freed.
func New() *Stub { return &Stub{C.vb_stub_new()} }

// Free frees the memory.
func (s *Stub) Free() { C.free(unsafe.Pointer(s.c)) }

// QP, SRQ and CQ return the queues: a struct ibv_qp, ibv_srq and ibv_cq.
func (s *Stub) QP() unsafe.Pointer  { return unsafe.Pointer(&s.c.qp) }
func (s *Stub) SRQ() unsafe.Pointer { return unsafe.Pointer(&s.c.srq) }
func (s *Stub) CQ() unsafe.Pointer  { return unsafe.Pointer(&s.c.cq) }

// Room makes posting fail with ENOMEM after n work requests.
func (s *Stub) Room(n int) { s.c.room = C.uint64_t(n) }

// Complete makes polling return n completions; a negative n makes it fail.
func (s *Stub) Complete(n int) { s.c.completions = C.int(n) }

// Seen returns the number of work requests posted since the last call and the sum of their fields.
func (s *Stub) Seen() (posted int, sum uint64) {
	posted, sum = int(s.c.posted), uint64(s.c.sum)
	s.c.posted, s.c.sum = 0, 0
	return posted, sum
}
