package target

import (
	"errors"
	"math"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/internal/event"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/compound"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// A device self-test reads namespaces in the background, as Verify commands would. It uses the
// memory share and the limits of the host that asked for it. It reads one chunk at a time, for at
// most half of the time. It ends with its controller. A short test reads a sample of each
// namespace, an extended one everything.

const (
	// selfTestShort is the duration of a short test in nanoseconds. It may take two minutes (Base
	// section 8.1.7.1).
	selfTestShort = int64(100e9)
	// selfTestSegment is the only segment.
	selfTestSegment = 1
)

// selfTest is the self-test of a controller. Its reactor only.
type selfTest struct {
	c   *controller
	cmd *cmd // reads; nil before the first test
	req fabric.Request

	begun   int  // operations
	removed bool // it ends if its only namespace is removed, or inaccessible
	controllers.SelfTestPlan
	index int    // of the current namespace in NSIDs
	chunk uint64 // the next one to read of this namespace
	ends  int64  // the time at which a short test ends

	reading int   // the operation of the read in flight, 0 for none
	since   int64 // the start of the read
	timer   timer // of the next read
}

// selfTestLook is the maximum number of unreadable namespaces that a turn skips.
const selfTestLook = 64

// prepareSelfTest checks a Device Self-test command (Base section 5.1.5).
func prepareSelfTest(c *cmd) nvme.Status {
	switch nsid := c.req.SQE.NSID(); c.req.SQE.SelfTest().STC() {
	case nvme.SelfTestShort, nvme.SelfTestExtended:
		ns := c.namespace()
		switch {
		case nsid == 0 || nsid == nvme.NSIDAll:
		case ns == nil:
			return controllers.NoNamespace(nsid)
		default:
			if st := c.s.ctrl.ANAStatus(ns); !st.OK() {
				return st // it uses the NSID (Base section 8.1.1.10)
			}
		}
	case nvme.SelfTestAbort:
	default: // no refresh operation (HIRS is 0), none of the vendor
		return invalidField
	}
	return c.expect(0)
}

func executeSelfTest(h *Handler, cm *cmd) {
	t, code := &cm.s.ctrl.selfTest, cm.req.SQE.SelfTest().STC()
	if code == nvme.SelfTestAbort {
		t.end(nvme.SelfTestResult{}, nvme.SelfTestAborted)
		h.finish(cm, 0, nvme.Success)
		return
	}
	var all controllers.SelfTestPlan
	h.named(cm, func(list []*namespaces.Namespace, _ bool) nvme.Status {
		all = controllers.PlanSelfTest(code, list)
		return nvme.Success
	}, func([]*namespaces.Namespace) {
		if t.c.SelfTest.Code != 0 {
			h.finish(cm, 0, nvme.SelfTestInProgress)
			return
		}
		t.start(cm.s.ctrl, code, all, cm.req.SQE.NSID())
		h.finish(cm, 0, nvme.Success)
	})
}

func (t *selfTest) start(c *controller, code nvme.SelfTestCode, p controllers.SelfTestPlan,
	nsid uint32,
) {
	t.removed, t.SelfTestPlan = nsid != nvme.NSIDAll, p
	c.SelfTest.Begin(code, p)
	t.begun++
	t.index, t.chunk, t.ends = 0, 0, math.MaxInt64
	if code == nvme.SelfTestShort {
		t.ends = c.h.loop.Now() + selfTestShort
	}
	if t.cmd == nil {
		t.cmd = c.admin.command(&t.req)
		t.cmd.then = t.readDone
	}
	t.pause(controllers.SelfTestPause)
}

// pause continues the test after d, unless a read of an earlier test will do so when it returns.
func (t *selfTest) pause(d int64) {
	if t.reading == 0 {
		t.timer.set(t.c.h, d, t.advance)
	}
}

// advance reads the next chunk, or ends the test.
func (t *selfTest) advance() {
	for n := 0; t.index < len(t.NSIDs); n, t.index, t.chunk = n+1, t.index+1, 0 {
		if n == selfTestLook {
			t.pause(0)
			return
		}
		ns := t.c.Namespace(t.NSIDs[t.index])
		switch {
		case ns == nil && t.removed:
			t.end(nvme.SelfTestResult{}, nvme.SelfTestNamespaceRemoved)
			return
		case ns == nil || t.c.h.loop.Now() >= t.ends:
			continue
		case t.c.ANAStatus(ns).OK():
		case t.removed: // all of the test would be left out
			t.end(nvme.SelfTestResult{}, nvme.SelfTestAbortedOther)
			return
		default:
			continue
		}
		g := ns.Geometry() // once: it may change at any time
		if at, ok := t.Chunk(g, t.chunk); ok {
			t.read(g, at)
			return
		}
	}
	t.end(nvme.SelfTestResult{}, nvme.SelfTestPassed)
}

// read reads a chunk of the namespace.
func (t *selfTest) read(g *namespaces.Geometry, chunk uint64) {
	c, h := t.cmd, t.c.h
	blocks := uint64(compound.Chunk) >> g.Shift
	slba := chunk * blocks
	t.req.Reset()
	t.req.SQE.SetNSID(t.NSIDs[t.index])
	t.req.SQE.RW().Set(slba, uint32(min(blocks, g.Blocks-slba)), 0)
	c.req, c.op, c.ch, c.limited, c.executing = &t.req, &ioOps[nvme.NVMVerify], nil, false, true
	c.s.outstanding++
	t.reading, t.since = t.begun, h.loop.Now()
	if _, st := c.extent(backend.OpRead); !st.OK() {
		h.finish(c, 0, st)
		return
	}
	executeVerify(h, c)
}

// readDone continues after a read.
func (t *selfTest) readDone(st nvme.Status) {
	of := t.reading
	t.reading = 0
	took := t.c.h.loop.Now() - t.since
	switch {
	case t.c.SelfTest.Code == 0:
		return
	case of != t.begun, st == nvme.CommandInterrupted: // it was for another test, or has no memory
	case st.OK():
		t.chunk++
		t.c.SelfTest.Done++
	case st == reservationConflict:
		t.index, t.chunk = t.index+1, 0 // others have reserved it
	case t.c.Namespace(t.NSIDs[t.index]) == nil:
	default:
		t.failed(st)
		return
	}
	t.pause(max(controllers.SelfTestPause, took))
}

// failed ends the test with the namespace that cannot be read, and the block, if that is known.
func (t *selfTest) failed(st nvme.Status) {
	r := nvme.SelfTestResult{
		SEGN: selfTestSegment, NSID: t.NSIDs[t.index], SCT: st.SCT(), SC: st.SC(),
		VDINFO: nvme.SelfTestValidNSID | nvme.SelfTestValidSCT | nvme.SelfTestValidSC,
	}
	var at *backend.Fault
	if ns := t.c.Namespace(r.NSID); ns != nil && errors.As(t.cmd.io.Err, &at) {
		r.FLBA, r.VDINFO = uint64(at.Off)>>ns.Geometry().Shift, r.VDINFO|nvme.SelfTestValidFLBA
	}
	t.c.PeerLog().Report(event.SelfTestFailed, "subsystem", t.c.sub.NQN, "nsid", r.NSID,
		"host", t.c.HostNQN, "status", st.String())
	t.end(r, nvme.SelfTestSegmentFailed)
}

// end adds the result of the test in progress to the log; without one it does nothing.
func (t *selfTest) end(r nvme.SelfTestResult, how nvme.SelfTestOutcome) {
	if t.c.SelfTest.Code == 0 {
		return
	}
	t.c.SelfTest.End(r, how, time.Since(t.c.t.common.Started))
	t.close()
}

// close ends the test. A read in flight continues, and finds no test when it returns.
func (t *selfTest) close() {
	t.c.SelfTest.Code, t.NSIDs = 0, nil
	t.timer.stop()
}

// reset is a Controller Reset, which an extended test survives (Base section 8.1.7).
func (t *selfTest) reset() {
	if t.c.SelfTest.Code == nvme.SelfTestShort {
		t.end(nvme.SelfTestResult{}, nvme.SelfTestReset)
	}
}
