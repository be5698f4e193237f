//go:build cgo

package ibv

// #include <stdlib.h>
// #include "stub.h"
import "C"

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
)

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

// breakCommands makes the kernel refuse all commands for the device of a queue pair until restore
// is called: the descriptor of commands is then the read end of a pipe.
func breakCommands(vqp verbs.QP) (restore func()) {
	var pipe [2]int
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	commands := int(vqp.(*qp).c.context.cmd_fd)
	saved, err := unix.FcntlInt(uintptr(commands), unix.F_DUPFD_CLOEXEC, 0)
	must(err)
	must(unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	must(unix.Dup3(pipe[0], commands, unix.O_CLOEXEC))
	return func() {
		must(unix.Dup3(saved, commands, unix.O_CLOEXEC))
		for _, fd := range []int{saved, pipe[0], pipe[1]} {
			must(unix.Close(fd))
		}
	}
}
