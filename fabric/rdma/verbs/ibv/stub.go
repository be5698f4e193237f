//go:build cgo

package ibv

// #include <stdlib.h>
// #include "stub.h"
import "C"

import "unsafe"

// stub is a queue pair, a shared receive queue and a completion queue without a device, to test and
// measure calls into C: test files may not use cgo themselves.
type stub struct{ c *C.struct_vb_stub }

func newStub() *stub           { return &stub{C.vb_stub_new()} }
func (s *stub) free()          { C.free(unsafe.Pointer(s.c)) }
func (s *stub) qp() *qp        { return &qp{c: &s.c.qp} }
func (s *stub) srq() *srq      { return &srq{c: &s.c.srq} }
func (s *stub) cq() *cq        { return &cq{c: &s.c.cq} }
func (s *stub) room(n int)     { s.c.room = C.uint64_t(n) }
func (s *stub) complete(n int) { s.c.completions = C.int(n) }

// seen returns the number of work requests posted since the last call and the sum of their fields.
func (s *stub) seen() (posted int, sum uint64) {
	posted, sum = int(s.c.posted), uint64(s.c.sum)
	s.c.posted, s.c.sum = 0, 0
	return posted, sum
}
