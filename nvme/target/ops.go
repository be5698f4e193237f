package target

import (
	"github.com/nvmf-target/nvmf-target/fabric"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/controllers"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// op is a command of a command set. An empty slot of a table is Invalid Opcode.
type op struct {
	name  string
	scope controllers.Scope
	// dir is the direction of the data, if there is any.
	dir fabric.Direction
	// prepare validates the command and sets the request's Dir and Length. It changes nothing that
	// outlives a refusal.
	prepare func(c *cmd) nvme.Status
	// execute starts the command; it or a later callback calls Handler.finish once.
	execute func(h *Handler, c *cmd)
	// begin, if set, is called once limits let the prepared command go on, unless it is one of a
	// pair. The transport then moves its data.
	begin func(c *cmd)
	gates
	flags opFlags
	// effect is the entry of log 05h without CSUPP and scope.
	effect nvme.Effect
	// oncs is the bit of ONCS that reports an optional I/O command.
	oncs nvme.ONCS
}

// offered reports whether a controller has the command.
func (o *op) offered(c *controllers.Controller) bool { return o.execute != nil && o.scope.Has(c) }

// gates are the conditions that keep a command from being carried out, a column of the tables for
// each gate. A gate that an op does not name does not keep it back. Every command that the zero
// value does not suit has to say so, and the test of gates has the same columns from the
// specification.
//
// Other gates are the same for every command of a queue and have no column: the queue has
// authenticated, the controller is ready, the host sees the namespace, the storage is there.
type gates struct {
	// group is the command group, by which a reservation refuses it (Base section 8.1.22.1).
	group reservation.Group
	// changes: refused while the namespace is write protected (Base section 8.1.16).
	changes change
	// ana: refused in ANA states in which the namespace is inaccessible (Base section 8.1.1.10).
	ana anaGate
	// limit is the amount that the command takes of the limits on commands and bytes.
	limit limitGate
	// reauth is the treatment of the command when its host has to authenticate again.
	reauth reauthGate
}

const (
	groupNone  = reservation.GroupNone // reservations do not refuse it, or prepare decides
	groupRead  = reservation.GroupRead
	groupWrite = reservation.GroupWrite
)

type change uint8

const (
	changeNone change = iota
	changeBlocks
	changeDeallocate // only with AD: else Dataset Management is advice (NVM section 3.3.3)
)

type anaGate uint8

const (
	anaNone anaGate = iota
	anaNSID         // the state of the namespace, or for a Flush of all, of each when it is flushed
	anaOwn          // prepare decides by the contents of the command
)

type limitGate uint8

const (
	limitNone limitGate = iota
	limitOne            // one command, and for each further range another; see package compound
	limitData           // one command, with its blocks
	// limitParts: one command, and for each part of its blocks another; see package compound
	limitParts
	// limitPieces: a command for each piece, with its blocks, the first one when it begins
	limitPieces
)

type reauthGate uint8

const (
	reauthNone reauthGate = iota
	// reauthStarts: the command starts the time that the host has, and is served. Linux does not
	// authenticate when an admin command is refused, and would lose the result of the command.
	reauthStarts
	// reauthLater: the command starts that time. It is refused if hosts send none of reauthFirst.
	reauthLater
	// reauthFirst: the command is refused first. Linux authenticates and repeats it.
	reauthFirst
)

type opFlags uint8

const (
	// opUnconnected: a Fabrics command that is sent before Connect, and only then.
	opUnconnected opFlags = 1 << iota
	// opAuthentication: a Fabrics command that is served before the host has authenticated.
	opAuthentication
	// opAdminQueue: a Fabrics command that is not sent on I/O queues.
	opAdminQueue
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
)

func init() {
	const (
		in  = fabric.HostToController
		out = fabric.ControllerToHost
	)
	starts := gates{reauth: reauthStarts}
	adminOps = [256]op{
		nvme.AdminGetLogPage: {
			name: "Get Log Page", dir: out, prepare: prepareAdmin, execute: getLog, gates: starts,
		},
		nvme.AdminIdentify: {
			name: "Identify", dir: out, prepare: prepareAdmin, execute: identify, gates: starts,
		},
		nvme.AdminAbort: {name: "Abort", prepare: prepareNoData, execute: abort},
		nvme.AdminSetFeatures: {
			name: "Set Features", dir: in, prepare: prepareAdmin, execute: setFeatures,
			gates: gates{ana: anaOwn, reauth: reauthStarts},
		},
		nvme.AdminGetFeatures: {
			name: "Get Features", dir: out, prepare: prepareAdmin, execute: getFeatures,
			gates: gates{ana: anaOwn, reauth: reauthStarts},
		},
		nvme.AdminAsyncEventReq: {
			name: "Asynchronous Event Request", prepare: prepareNoData, execute: asyncEventRequest,
		},
		nvme.AdminSelfTest: {
			name: "Device Self-test", scope: controllers.OnIO, prepare: prepareSelfTest,
			execute: executeSelfTest, gates: gates{ana: anaOwn, reauth: reauthStarts},
		},
		nvme.AdminKeepAlive: {name: "Keep Alive", prepare: prepareNoData, execute: keepAlive},
	}
	ioOps = [256]op{
		nvme.NVMFlush: {
			name: "Flush", prepare: prepareFlush, execute: executeFlush,
			gates: gates{groupWrite, changeNone, anaNSID, limitNone, reauthLater},
		},
		nvme.NVMWrite: {
			name: "Write", dir: in, prepare: prepareWrite, begin: (*cmd).startZeroCopy,
			execute: executeIO,
			gates:   gates{groupWrite, changeBlocks, anaNSID, limitData, reauthFirst},
			flags:   opBlocks, effect: nvme.EffectContentChange,
		},
		nvme.NVMRead: {
			name: "Read", dir: out, prepare: prepareRead, begin: (*cmd).startZeroCopy,
			execute: executeRead,
			gates:   gates{groupRead, changeNone, anaNSID, limitData, reauthFirst},
			flags:   opBlocks,
		},
		nvme.NVMWriteUncorrectable: {
			name: "Write Uncorrectable", scope: controllers.WithUncorrectable,
			prepare: prepareWriteUncorrectable, execute: executeWriteUncorrectable,
			gates: gates{groupWrite, changeBlocks, anaNSID, limitOne, reauthLater},
			flags: opBlocks, effect: nvme.EffectContentChange, oncs: nvme.ONCSWriteUncorrectable,
		},
		nvme.NVMCompare: {
			name: "Compare", dir: in, prepare: prepareRead, execute: executeCompare,
			gates: gates{groupRead, changeNone, anaNSID, limitData, reauthLater},
			flags: opBlocks, oncs: nvme.ONCSCompare,
		},
		nvme.NVMVerify: {
			name: "Verify", prepare: prepareVerify, execute: executeVerify,
			gates: gates{groupRead, changeNone, anaNSID, limitParts, reauthLater},
			flags: opBlocks, oncs: nvme.ONCSVerify,
		},
		nvme.NVMCopy: {
			name: "Copy", dir: in, prepare: prepareCopy, execute: executeCopy,
			gates:  gates{groupWrite, changeBlocks, anaNSID, limitParts, reauthLater},
			effect: nvme.EffectContentChange, oncs: nvme.ONCSCopy,
		},
		nvme.NVMWriteZeroes: {
			name: "Write Zeroes", prepare: prepareWriteZeroes, execute: executeWriteZeroes,
			gates: gates{groupWrite, changeBlocks, anaNSID, limitPieces, reauthLater},
			flags: opBlocks, effect: nvme.EffectContentChange, oncs: nvme.ONCSWriteZeroes,
		},
		nvme.NVMDatasetManagement: {
			name: "Dataset Management", scope: withDiscard, dir: in, prepare: prepareDSM,
			execute: executeDSM,
			gates:   gates{groupWrite, changeDeallocate, anaNSID, limitOne, reauthLater},
			effect:  nvme.EffectContentChange, oncs: nvme.ONCSDatasetManagement,
		},
		nvme.IOReservationRegister: {
			name: "Reservation Register", dir: in, prepare: prepareReservation,
			execute: executeReservation, gates: gates{ana: anaNSID, reauth: reauthLater},
			oncs: nvme.ONCSReservations,
		},
		nvme.IOReservationReport: {
			name: "Reservation Report", dir: out, prepare: prepareReport, execute: executeReport,
			gates: gates{ana: anaNSID, reauth: reauthLater},
		},
		nvme.IOReservationAcquire: {
			name: "Reservation Acquire", dir: in, prepare: prepareReservation,
			execute: executeReservation, gates: gates{ana: anaNSID, reauth: reauthLater},
		},
		nvme.IOReservationRelease: {
			name: "Reservation Release", dir: in, prepare: prepareReservation,
			execute: executeReservation, gates: gates{ana: anaNSID, reauth: reauthLater},
		},
	}
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
func withDiscard(c *controllers.Controller) bool { return c.Discard.Load() }

// effectsOf implements controllers.Target.Commands.
func effectsOf(c *controllers.Controller, admin bool) (e [256]nvme.Effect, oncs nvme.ONCS) {
	table, scope := &ioOps, scopeNone
	if admin {
		table, scope = &adminOps, scopeController
	}
	for i := range table {
		if o := &table[i]; o.offered(c) {
			e[i] = nvme.EffectSupported | o.effect | scope
			oncs |= o.oncs
		}
	}
	return e, oncs
}
