package gateways

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/testing/cephtest"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// tries carries out a command on the path that serves it, and reports whether that was possible in
// spite of promises.
func (w ways) tries(t *testing.T, id byte, op *host.Op) bool {
	t.Helper()
	err := w.do(id, op, nvme.ReservationConflict, nvme.NamespaceWriteProtected,
		nvme.UnrecoveredReadError)
	if _, refused := hosttest.StatusOf(err); refused && err != nil {
		return false
	}
	testutil.Must(t, err)
	return true
}

// protect changes the write protection of namespace 7.
func (w ways) protect(t *testing.T, id byte, to nvme.WriteProtection) {
	t.Helper()
	var read, set host.Op
	read.Read(7, 1, 1, make([]byte, 512))
	set.SQE.SetOpcode(nvme.AdminSetFeatures)
	set.SQE.SetNSID(7)
	set.SQE.Features().Set(nvme.FeatureWriteProtect, uint32(to))
	until(t, "write protection", func() bool { // on a busy machine the group may move
		testutil.Must(t, w.do(id, &read))
		cqe, err := w[0].ctrl.Admin(t.Context(), &set)
		return err == nil && cqe.Status().OK()
	})
}

// reserve carries out a reservation command, again if its answer was lost. There may be a conflict
// then.
func (w ways) reserve(t *testing.T, id byte, code nvme.Opcode, nsid uint32,
	a nvme.ReservationAction, current, other uint64,
) {
	t.Helper()
	var op host.Op
	var keys nvme.ReservationKeys
	keys.Set(current, other)
	op.SQE.SetOpcode(code)
	op.SQE.SetNSID(nsid)
	op.SQE.Reservation().Set(a, false, nvme.ReservationType(nsid), 0)
	op.Data = keys[:]
	w.tries(t, id, &op)
}

// TestReservations: reservations of each type, namespace 1 has the first one, are in force at the
// other gateway after a kill and after a drain, although they do not persist. A preempt there ends
// the access of the host. A namespace with damaged ones is not served, and the others are.
// Namespace 7 is write protected and has an uncorrectable block.
func TestReservations(t *testing.T) {
	t.Parallel() // it mostly waits
	c := cephtest.New(t)
	image := c.Image(t, "32M", "layering")
	seven := func(name string, cntlid int) *gateway {
		g := newGateway(t, c, image, name, cntlid)
		text := string(testutil.Value(os.ReadFile(g.file))(t))
		at := strings.Index(text, "      - nsid: 1")
		first := text[at:]
		for n := 2; n <= 7; n++ {
			text += strings.NewReplacer("nsid: 1", fmt.Sprint("nsid: ", n), image,
				strings.TrimSuffix(image, "1")+fmt.Sprint(n)).Replace(first)
		}
		testutil.Must(t, os.WriteFile(g.file, []byte(text), 0o600))
		return g
	}
	for range 6 {
		c.Image(t, "32M", "layering")
	}
	a, b := seven("a", 1), seven("b", 2000)
	a.start(t)
	b.start(t)
	var hosts [4]ways
	for id := range hosts {
		hosts[id] = newWays(a, b)
		defer hosts[id].drop()
	}
	readAt := func(id byte, nsid uint32, lba uint64) bool {
		var op host.Op
		op.Read(nsid, lba, 1, make([]byte, 512))
		return hosts[id].tries(t, id, &op)
	}
	read := func(id byte, nsid uint32) bool { return readAt(id, nsid, 0) }
	write := func(id byte, nsid uint32) bool {
		var op host.Op
		op.Write(nsid, 0, 1, make([]byte, 512), 0)
		return hosts[id].tries(t, id, &op)
	}
	inForce := func(when string) {
		t.Helper()
		for n := uint32(1); n <= 6; n++ {
			typ := nvme.ReservationType(n)
			testutil.True(t, write(1, n), "%s: %v: the holder cannot write", when, typ)
			testutil.Equal(t, write(2, n), !typ.SingleHolder(), "%s: %v: a registrant", when, typ)
			testutil.True(t, !write(3, n), "%s: %v: another host can write", when, typ)
			testutil.Equal(t, read(3, n), !typ.ExcludesReads(), "%s: %v: it reads", when, typ)
		}
		testutil.True(t, !write(3, 7), "%s: a write protected namespace was written", when)
		testutil.True(t, !read(3, 7) && readAt(3, 7, 1), "%s: uncorrectable blocks", when)
	}
	for n := uint32(1); n <= 6; n++ {
		for id := byte(1); id <= 2; id++ {
			hosts[id].reserve(t, id, nvme.IOReservationRegister, n, nvme.ReservationRegister, 0,
				uint64(id))
		}
		hosts[1].reserve(t, 1, nvme.IOReservationAcquire, n, nvme.ReservationAcquire, 1, 0)
	}
	var mark host.Op
	mark.SQE.SetOpcode(nvme.NVMWriteUncorrectable)
	mark.SQE.SetNSID(7)
	testutil.Must(t, hosts[1].do(1, &mark))
	hosts[1].protect(t, 1, nvme.WriteProtect)
	inForce("at first")
	from, to := a, b
	if hosts[1][0].addr == b.addr {
		from, to = b, a
	}
	from.signal(t, syscall.SIGKILL)
	// A fence does not wait for the lease. It fails if the holder is not known yet: the lease ends.
	_ = post(t, to, control.PostFence, control.GatewayID{Gateway: from.name})
	inForce("after a kill")
	from.start(t)
	drain := func(g *gateway) {
		t.Helper()
		d := control.GroupDrain{Group: 1}
		until(t, g.name+" is drained", func() bool {
			return post(t, g, control.PostGroupDrain, d) == nil
		})
		until(t, g.name+" does not serve", func() bool {
			return g.group(t).State == "standby"
		})
		d.Undo = true
		testutil.Must(t, post(t, g, control.PostGroupDrain, d))
	}
	drain(to)
	inForce("after a drain")
	hosts[2].protect(t, 2, nvme.NoWriteProtect)
	testutil.True(t, write(2, 7) && read(2, 7), "the block was not written")

	told := notified(t, hosts[1], a, b)
	for n := uint32(1); n <= 6; n++ {
		key := uint64(1)
		if nvme.ReservationType(n).AllRegistrants() {
			key = 0
		}
		hosts[2].reserve(t, 2, nvme.IOReservationAcquire, n, nvme.ReservationPreemptAndAbort, 2,
			key)
		testutil.True(t, !write(1, n) && write(2, n), "namespace %d after a preempt", n)
	}
	told()
	late := preempted(t, hosts[:], a, b)
	object := damaged(t, c, hosts[2], drain, a, b)
	testutil.True(t, !write(2, 1) && write(1, 1), "after a repair")
	late()
	from, to = a, b
	until(t, "one of them serves", func() bool {
		from, to = to, from
		return from.group(t).State == "serving"
	})
	removed(t, c, object, drain, from, to)
	testutil.True(t, write(3, 1) && !write(1, 2), "after the promises were given up")
}

// notified returns a function that waits until host 1 has learned, from the gateway that does not
// serve the group, that its registration of namespace 1 was preempted.
func notified(t *testing.T, w ways, a, b *gateway) (told func()) {
	t.Helper()
	var read, event host.Op
	read.Read(2, 0, 1, make([]byte, 512))
	testutil.Must(t, w.do(1, &read)) // the first path serves it
	p := &path{addr: a.addr, hang: testutil.Patience}
	if w[0].addr == a.addr {
		p.addr = b.addr
	}
	p.do(1, &read) // connects
	event.SQE.SetOpcode(nvme.AdminAsyncEventReq)
	wait := p.ctrl.AdminAsync(t.Context(), &event)
	return func() {
		t.Helper()
		defer p.drop()
		cqe, err := wait()
		testutil.Must(t, err)
		testutil.Equal(t, nvme.AsyncEvent(cqe.DW0()), nvme.AsyncReservation, "the event")
		preempted := func() bool {
			data := testutil.Value(hosttest.GetLog(t.Context(), p.ctrl, nvme.LogReservation, 0, 0,
				nvme.ReservationLogSize, 0, false))(t)
			page := testutil.Value(nvme.Parse[nvme.ReservationLog](data))(t)
			return page.NSID == 1 && page.Type == nvme.RegistrationPreempted
		}
		until(t, "the notification", preempted)
	}
}

// removed removes the object with the promises of namespace 1, which only gateway from has seen.
func removed(t *testing.T, c *cephtest.Cluster, object string, drain func(*gateway),
	from, to *gateway,
) {
	t.Helper()
	to.signal(t, syscall.SIGTERM)
	testutil.Must(t, os.RemoveAll(filepath.Join(filepath.Dir(to.file), "shared")))
	c.Rados(t, "rm", object)
	to.start(t)
	drain(from)
	until(t, "the status has the reason", func() bool {
		return strings.Contains(to.group(t).Problem, "the record of the group says so")
	})
	none := filepath.Join(t.TempDir(), "none")
	testutil.Must(t, os.WriteFile(none, []byte(state.NoPromises), 0o600))
	c.Rados(t, "put", object, none)
	until(t, "it is served", func() bool { return to.group(t).Problem == "" })
}

// damaged damages the reservations of namespace 1 while no gateway has them, and repairs them.
func damaged(t *testing.T, c *cephtest.Cluster, w ways, drain func(*gateway), a, b *gateway,
) (object string) {
	t.Helper()
	for name := range strings.FieldsSeq(c.Rados(t, "ls")) {
		if strings.HasPrefix(name, "nvmf.reservations.") && strings.HasSuffix(name, "-1") {
			object = name
		}
	}
	good, bad := filepath.Join(t.TempDir(), "good"), filepath.Join(t.TempDir(), "bad")
	c.Rados(t, "get", object, good)
	testutil.Must(t, os.WriteFile(bad, []byte("{}"), 0o600))
	c.Rados(t, "put", object, bad)
	problem := func() bool {
		for _, g := range []*gateway{a, b} {
			if strings.Contains(g.group(t).Problem, object) {
				return true
			}
		}
		return false
	}
	until(t, "the status has the reason", func() bool {
		for _, g := range []*gateway{a, b} {
			if g.group(t).State == "serving" && !problem() {
				drain(g)
			}
		}
		return problem()
	})
	var op host.Op
	op.Read(1, 0, 1, make([]byte, 512))
	for range 3 { // for more than a second each: the target delays its answer
		for _, p := range w {
			testutil.True(t, !p.do(2, &op), "a namespace with damaged reservations is served")
		}
	}
	op.Read(2, 0, 1, make([]byte, 512))
	testutil.Must(t, w.do(2, &op)) // which is served
	c.Rados(t, "put", object, good)
	return object
}
