package target

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// op is a command of a command set. An empty slot of a table is Invalid Opcode.
type op struct {
	name  string
	scope scope
	// dir is the direction of the data, if there is any.
	dir fabric.Direction
	// prepare validates the command and sets the request's Dir and Length. It changes nothing that
	// outlives a refusal.
	prepare func(c *cmd) nvme.Status
	// execute starts the command; it or a later callback calls Handler.finish once.
	execute func(h *Handler, c *cmd)
	flags   opFlags
	// effect is the entry of log 05h without CSUPP and scope.
	effect nvme.Effect
	// oncs is the bit of ONCS that reports an optional I/O command.
	oncs nvme.ONCS
}

// offered says whether a controller has the command.
func (o *op) offered(c *controller) bool { return o.execute != nil && o.scope.has(c) }

type opFlags uint8

const (
	// opUnconnected: a Fabrics command that is sent before Connect, and only then.
	opUnconnected opFlags = 1 << iota
	// opAuthentication: a Fabrics command that is served before the host has authenticated.
	opAuthentication
	// opAdminQueue: a Fabrics command that is not sent on I/O queues.
	opAdminQueue
	// opWrites: the command is in the write command group of reservations; without it, if it is for
	// a namespace, in the read command group (Base section 8.1.22.1).
	opWrites
	// opBlocks: an I/O command that names its blocks by SLBA and NLB.
	opBlocks
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
	// askingOps are those of an I/O queue whose host is to authenticate again.
	askingOps [256]op
)

func init() {
	const (
		in  = fabric.HostToController
		out = fabric.ControllerToHost
	)
	adminOps = [256]op{
		nvme.AdminGetLogPage: {
			name: "Get Log Page", dir: out, prepare: prepareGetLog, execute: getLog,
		},
		nvme.AdminIdentify: {
			name: "Identify", dir: out, prepare: prepareIdentify, execute: identify,
		},
		nvme.AdminAbort: {name: "Abort", prepare: prepareNoData, execute: abort},
		nvme.AdminSetFeatures: {
			name: "Set Features", dir: in, prepare: prepareSetFeatures, execute: setFeatures,
		},
		nvme.AdminGetFeatures: {
			name: "Get Features", dir: out, prepare: prepareGetFeatures, execute: getFeatures,
		},
		nvme.AdminAsyncEventReq: {
			name: "Asynchronous Event Request", prepare: prepareNoData, execute: asyncEventRequest,
		},
		nvme.AdminSelfTest: {
			name: "Device Self-test", scope: onIO, prepare: prepareSelfTest,
			execute: executeSelfTest,
		},
		nvme.AdminKeepAlive: {name: "Keep Alive", prepare: prepareNoData, execute: keepAlive},
	}
	ioOps = [256]op{
		nvme.NVMFlush: {
			name: "Flush", prepare: prepareFlush, execute: executeFlush, flags: opWrites,
		},
		nvme.NVMWrite: {
			name: "Write", dir: in, prepare: prepareWrite, execute: executeIO,
			flags: opBlocks | opWrites, effect: nvme.EffectContentChange,
		},
		nvme.NVMRead: {
			name: "Read", dir: out, prepare: prepareRead, execute: executeRead, flags: opBlocks,
		},
		nvme.NVMWriteUncorrectable: {
			name: "Write Uncorrectable", scope: withUncorrectable,
			prepare: prepareWriteUncorrectable, execute: executeWriteUncorrectable,
			flags: opBlocks | opWrites, effect: nvme.EffectContentChange,
			oncs: nvme.ONCSWriteUncorrectable,
		},
		nvme.NVMCompare: {
			name: "Compare", dir: in, prepare: prepareCompare, execute: executeCompare,
			flags: opBlocks, oncs: nvme.ONCSCompare,
		},
		nvme.NVMVerify: {
			name: "Verify", prepare: prepareVerify, execute: executeVerify, flags: opBlocks,
			oncs: nvme.ONCSVerify,
		},
		nvme.NVMCopy: {
			name: "Copy", dir: in, prepare: prepareCopy, execute: executeCopy,
			flags: opWrites, effect: nvme.EffectContentChange, oncs: nvme.ONCSCopy,
		},
		nvme.NVMWriteZeroes: {
			name: "Write Zeroes", prepare: prepareWriteZeroes, execute: executeIO,
			flags: opBlocks | opWrites, effect: nvme.EffectContentChange,
			oncs: nvme.ONCSWriteZeroes,
		},
		nvme.NVMDatasetManagement: {
			name: "Dataset Management", scope: withDiscard, dir: in, prepare: prepareDSM,
			execute: executeDSM, flags: opWrites, effect: nvme.EffectContentChange,
			oncs: nvme.ONCSDatasetManagement,
		},
		nvme.IOReservationRegister: {
			name: "Reservation Register", dir: in, prepare: prepareReservation,
			execute: executeReservation, oncs: nvme.ONCSReservations,
		},
		nvme.IOReservationReport: {
			name: "Reservation Report", dir: out, prepare: prepareReport, execute: executeReport,
		},
		nvme.IOReservationAcquire: {
			name: "Reservation Acquire", dir: in, prepare: prepareReservation,
			execute: executeReservation,
		},
		nvme.IOReservationRelease: {
			name: "Reservation Release", dir: in, prepare: prepareReservation,
			execute: executeReservation,
		},
	}
	askingOps = ioOps
	askingOps[nvme.NVMRead].prepare = prepareAsking
	askingOps[nvme.NVMWrite].prepare = prepareAsking
	fabricsOps = [256]op{
		nvme.FabricsPropertySet: {
			name: "Property Set", prepare: prepareProperty, execute: propertySet,
			flags: opAdminQueue,
		},
		nvme.FabricsConnect: {
			name: "Connect", dir: in, prepare: prepareConnect, execute: connect,
			flags: opUnconnected,
		},
		nvme.FabricsPropertyGet: {
			name: "Property Get", prepare: prepareProperty, execute: propertyGet,
			flags: opAdminQueue,
		},
		nvme.FabricsAuthSend: {
			name: "Authentication Send", dir: in, prepare: prepareAuth, execute: authSend,
			flags: opAuthentication,
		},
		nvme.FabricsAuthReceive: {
			name: "Authentication Receive", dir: out, prepare: prepareAuth, execute: authReceive,
			flags: opAuthentication,
		},
		nvme.FabricsDisconnect: {
			name: "Disconnect", prepare: prepareDisconnect, execute: disconnect,
		},
	}
}

// withDiscard: Dataset Management is offered if a namespace can deallocate.
func withDiscard(c *controller) bool { return c.discard.Load() }

// oncs reports the optional I/O commands that a controller has.
func oncs(c *controller) (bits nvme.ONCS) {
	for i := range ioOps {
		if o := &ioOps[i]; o.offered(c) {
			bits |= o.oncs
		}
	}
	return bits
}

// effects makes the descriptors of log 05h from a table whose commands have the given scope.
func effects(c *controller, table *[256]op, scope nvme.Effect) (e [256]nvme.Effect) {
	for i := range table {
		if o := &table[i]; o.offered(c) {
			e[i] = nvme.EffectSupported | o.effect | scope
		}
	}
	return e
}
