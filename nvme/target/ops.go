package target

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// op is a command of a command set. An empty slot of a table is Invalid Opcode.
type op struct {
	name string
	// dir is the way of the data, if there is any.
	dir fabric.Direction
	// prepare validates and answers the request's Dir and Length. It changes nothing that outlives
	// a refusal.
	prepare func(c *cmd) nvme.Status
	// execute starts the command; it or a later callback calls Handler.finish once.
	execute func(h *Handler, c *cmd)
	flags   opFlags
	// effect is the entry of log 05h without CSUPP and scope.
	effect nvme.Effect
}

// opFlags restrict where a Fabrics command may be sent.
type opFlags uint8

const (
	// opUnconnected: before Connect, and only then.
	opUnconnected opFlags = 1 << iota
	// opAdminQueue: not on I/O queues.
	opAdminQueue
)

// The scope of a command in log 05h, bits 31:20 (Base section 5.1.12.1.6, CSP). I/O commands report
// none: Linux warns of "unusual effects" if theirs have a bit besides CSUPP and LBCC.
const (
	scopeNone       nvme.Effect = 0
	scopeController nvme.Effect = 1 << 21
)

// The tables are filled by init because log 05h, which is one of the commands, reads them.
var (
	adminOps   [256]op
	ioOps      [256]op
	fabricsOps [256]op // by FCTYPE
)

func init() {
	const (
		in  = fabric.HostToController
		out = fabric.ControllerToHost
	)
	adminOps = [256]op{
		nvme.AdminGetLogPage: {
			name: "Get Log Page", dir: out, prepare: prepareGetLog,
			execute: getLog,
		},
		nvme.AdminIdentify: {
			name: "Identify", dir: out, prepare: prepareIdentify,
			execute: identify,
		},
		nvme.AdminAbort: {name: "Abort", prepare: prepareNoData, execute: abort},
		nvme.AdminSetFeatures: {
			name: "Set Features", dir: in, prepare: prepareSetFeatures,
			execute: setFeatures,
		},
		nvme.AdminGetFeatures: {
			name: "Get Features", dir: out, prepare: prepareGetFeatures,
			execute: getFeatures,
		},
		nvme.AdminAsyncEventReq: {
			name: "Asynchronous Event Request", prepare: prepareNoData,
			execute: asyncEventRequest,
		},
		nvme.AdminKeepAlive: {name: "Keep Alive", prepare: prepareNoData, execute: keepAlive},
	}
	ioOps = [256]op{
		nvme.NVMFlush: {name: "Flush", prepare: prepareFlush, execute: executeFlush},
		nvme.NVMWrite: {
			name: "Write", dir: in, prepare: prepareWrite, execute: executeIO,
			effect: nvme.EffectContentChange,
		},
		nvme.NVMRead: {name: "Read", dir: out, prepare: prepareRead, execute: executeRead},
		nvme.NVMWriteZeroes: {
			name: "Write Zeroes", prepare: prepareWriteZeroes, execute: executeIO,
			effect: nvme.EffectContentChange,
		},
		nvme.NVMDatasetManagement: {
			name: "Dataset Management", dir: in, prepare: prepareDSM, execute: executeDSM,
			effect: nvme.EffectContentChange,
		},
	}
	fabricsOps = [256]op{
		nvme.FabricsPropertySet: {
			name: "Property Set", prepare: prepareProperty,
			execute: propertySet, flags: opAdminQueue,
		},
		nvme.FabricsConnect: {
			name: "Connect", dir: in, prepare: prepareConnect,
			execute: connect, flags: opUnconnected,
		},
		nvme.FabricsPropertyGet: {
			name: "Property Get", prepare: prepareProperty,
			execute: propertyGet, flags: opAdminQueue,
		},
		nvme.FabricsDisconnect: {
			name: "Disconnect", prepare: prepareDisconnect,
			execute: disconnect,
		},
	}
}

// effects makes the descriptors of log 05h from a table whose commands have the given scope.
func effects(table *[256]op, scope nvme.Effect) (e [256]nvme.Effect) {
	for i := range table {
		if o := &table[i]; o.execute != nil {
			e[i] = nvme.EffectSupported | o.effect | scope
		}
	}
	return e
}

// psdtSGL is the only PSDT of Admin and I/O commands that fabrics allow: SGLs, MPTR is an address
// (Base section 4.1.1, figure 91).
const psdtSGL = 1

// flagsMask is PSDT and FUSE in byte 1 of a command.
const flagsMask = 0xC3

// badFabricsFlags judges byte 1 of a Fabrics command, which always uses SGLs (Base section 4.1.2,
// figure 95): nothing is fused, and PSDT is 10b with data, or 00b. Linux writes 01b as in all other
// commands, and its target takes nothing else.
func badFabricsFlags(sqe *nvme.SQE) bool { return sqe.PSDT() == 3 || sqe.FUSE() != 0 }

// prepare validates a command as far as it goes without its data.
func (s *session) prepare(c *cmd) nvme.Status {
	sqe := &c.req.SQE
	if sqe.Opcode() == nvme.FabricsOpcode {
		return s.prepareFabrics(c)
	}
	if s.ctrl == nil {
		return sequenceError
	}
	if sqe.Flags()&flagsMask != psdtSGL<<6 {
		return invalidField
	}
	o := &s.table[sqe.Opcode()]
	if o.execute == nil {
		return invalidOpcode
	}
	if s.leaving != nil || s.left {
		return sequenceError
	}
	if !s.ctrl.ready.Load() {
		// connected while it was ready: reset, failed or removed, and this queue is about to go
		if s.qid != 0 {
			// another try, after the reset or on another path, may do
			return nvme.CommandSequenceError
		}
		return sequenceError
	}
	c.op = o
	return o.prepare(c)
}

func (s *session) prepareFabrics(c *cmd) nvme.Status {
	sqe := &c.req.SQE
	o := &fabricsOps[sqe.FabricsType()]
	switch {
	case badFabricsFlags(sqe):
		return invalidField
	case o.execute == nil && s.ctrl != nil:
		return invalidOpcode // Authentication commands too: no subsystem requires authentication
	case (s.ctrl == nil) != (o.flags&opUnconnected != 0):
		return sequenceError
	case o.flags&opAdminQueue != 0 && s.qid != 0:
		return invalidOpcode
	}
	c.op = o
	return o.prepare(c)
}

// expect answers a request whose data must be exactly n bytes long.
func (c *cmd) expect(n uint32) nvme.Status {
	r := c.req
	switch {
	case r.HostLength != n:
		return invalidLength
	case n == 0:
		return nvme.Success
	case c.op.dir == fabric.ControllerToHost && r.InCapsule:
		return invalidField // capsules carry data to the controller only
	}
	r.Dir, r.Length = c.op.dir, n
	return nvme.Success
}

func prepareNoData(c *cmd) nvme.Status { return c.expect(0) }
