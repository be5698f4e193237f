package target

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/nvme/target/qos"
	"github.com/nvmf-target/nvmf-target/nvme/target/subsystems"
)

// These tests are made from the tables of commands, Identify data structures, log pages
// and features, so a new row is tested by the rules of the others. Exceptions have an entry here,
// with the section of the specification that defines them.

// nsidClasses has NSIDs of each class: none, active, inactive, invalid, every namespace.
var nsidClasses = [...]uint32{
	0, 1, 2, namespaces.MaxNSID, namespaces.MaxNSID + 1, nvme.NSIDAll - 1, nvme.NSIDAll,
}

// nsidRule has the status for each of nsidClasses; good is the same status for all that have it.
type nsidRule [len(nsidClasses)]nvme.Status

const (
	good     = nvme.Status(0xFFFF)
	invalid  = invalidNamespace
	inactive = inactiveNamespace
	perCtrl  = nvme.FeatureNotPerNamespace | nvme.DNR
)

var (
	// nsidIgnored: the command does not use its NSID.
	nsidIgnored = nsidRule{good, good, good, good, good, good, good}
	// nsidActive: the command needs a namespace (Base section 3.2.1.5).
	nsidActive = nsidRule{invalid, good, inactive, inactive, invalid, invalid, invalid}
	// nsidReservation: an NSID that names no namespace is Invalid Field (Base sections 5.1.25.1.29
	// and 5.1.25.1.30). For Get Features, so is FFFFFFFFh.
	nsidReservation = nsidRule{
		invalidField, good, inactive, inactive, invalidField, invalidField, invalidField,
	}
	nsidSetReservation = nsidRule{
		invalidField, good, inactive, inactive, invalidField, invalidField, good,
	}
	// nsidEvery: FFFFFFFFh is every namespace; VWC bits 2:1 are 11b (Base section 7.2).
	nsidEvery = nsidRule{invalid, good, inactive, inactive, invalid, invalid, good}
	// nsidZeroed: the structure of an inactive namespace is zeroes (Base section 5.1.13.2.8, NVM
	// section 4.1.5.1); without namespace management FFFFFFFFh is invalid.
	nsidZeroed = nsidRule{invalid, good, good, good, invalid, invalid, invalid}
	// nsidListed: the list has the NSIDs above the given one (Base section 5.1.13.2.2).
	nsidListed = nsidRule{good, good, good, good, good, invalid, invalid}
	// Get Log Page: 0 and FFFFFFFFh are the controller, which some logs have alone (Base section
	// 5.1.12).
	nsidLogController = nsidRule{good, invalidField, inactive, inactive, invalid, invalid, good}
	nsidLogNamespace  = nsidRule{good, good, inactive, inactive, invalid, invalid, good}
	// Set Features: one of the controller is not set for a namespace (Base section 4.2.3.2, 0Fh).
	nsidSetController = nsidRule{good, perCtrl, perCtrl, perCtrl, invalid, invalid, good}
	nsidSetNamespace  = nsidRule{invalid, good, inactive, inactive, invalid, invalid, good}
)

// getRules are the rules of Get Features for features of a namespace that are not nsidActive.
// setRules are the rules of Set Features that are not nsidSetNamespace.
var (
	getRules = map[nvme.FID]nsidRule{
		// SPDK's compliance tool reads it with NSID 0.
		nvme.FeatureErrorRecovery: {good, good, inactive, inactive, invalid, invalid, invalid},
		// only one namespace can answer
		nvme.FeatureReservationMask:    nsidReservation,
		nvme.FeatureReservationPersist: nsidReservation,
	}
	setRules = map[nvme.FID]nsidRule{
		nvme.FeatureWriteProtect:       nsidActive, // one at a time
		nvme.FeatureReservationMask:    nsidSetReservation,
		nvme.FeatureReservationPersist: nsidSetReservation,
	}
)

// featureBits are the bits of CDW11 that Set Features has a meaning for, if these are not all (Base
// section 5.1.25.1, NVM section 4.1.3).
var featureBits = map[nvme.FID]uint32{
	nvme.FeatureArbitration: 0xFFFFFF07, nvme.FeaturePowerManagement: 0xFF,
	nvme.FeatureTemperatureThreshold: 0x01FFFFFF, nvme.FeatureErrorRecovery: 0x1FFFF,
	nvme.FeatureVolatileWriteCache: 1, nvme.FeatureWriteAtomicity: 1,
	nvme.FeatureTimestamp: 0, nvme.FeatureHostBehavior: 0, nvme.FeatureCommandSetProfile: 0x1FF,
	nvme.FeatureSpinupControl: 1, nvme.FeatureHostIdentifier: 1, nvme.FeatureWriteProtect: 7,
}

// featureValues are the values that samples set, if not 0: a Keep Alive needs a timeout.
var featureValues = map[nvme.FID]uint32{nvme.FeatureKeepAliveTimer: 60000}

// cnsRules are the rules of Identify data structures; others ignore the NSID.
var cnsRules = map[nvme.CNS]nsidRule{
	nvme.CNSNamespace: nsidZeroed, nvme.CNSCommandSetNamespace: nsidZeroed,
	nvme.CNSIndependentNamespace: nsidZeroed, nvme.CNSAllocatedNamespace: nsidZeroed,
	nvme.CNSActiveNamespaces: nsidListed, nvme.CNSCommandSetActive: nsidListed,
	nvme.CNSAllocatedNamespaces: nsidListed,
	// any that is not active is Invalid Namespace or Format (Base section 5.1.13.2.3), as at nvmet
	nvme.CNSDescriptors: {invalid, good, invalid, invalid, invalid, invalid, invalid},
	// FFFFFFFFh is Invalid Field (Base section 5.1.13.2.11)
	nvme.CNSAttachedControllers: {
		invalid, good, inactive, inactive, invalid, invalid, invalidField,
	},
}

// dwords are the bits of command dwords 10 to 15 that have a meaning for a command. The others are
// reserved, and do not change its effect (Base section 1.5, "Reserved").
type dwords [6]uint32

const allBits = ^uint32(0)

// endurance are the log pages that have an endurance group for their LSI.
var endurance = []nvme.LID{nvme.LogEnduranceGroup, nvme.LogRotationalMedia}

// sample is one of the commands that are carried out for a row of a table.
type sample struct {
	name    string
	io      bool
	nsid    nsidRule
	defined dwords
	command func() *fabrictest.Command
}

// samples has one of each row that a controller has.
func samples(c *controller) (list []sample) {
	for i := range 256 {
		list = append(list, adminSamples(c, uint8(i))...)
	}
	list = append(list,
		sample{"Abort", false, nsidIgnored, dwords{allBits}, func() *fabrictest.Command {
			return abortCommand(1, 0xFFFF)
		}},
		sample{"Keep Alive", false, nsidIgnored, dwords{}, func() *fabrictest.Command {
			return command(nvme.AdminKeepAlive, 0, nil)
		}})
	if !c.sub.Discovery {
		list = append(list, sample{
			"Device Self-test", false, nsidIgnored, dwords{0xF}, func() *fabrictest.Command {
				return selfTestCommand(nvme.SelfTestAbort, 0)
			},
		})
	}
	for i := range 256 {
		if o := &ioOps[i]; o.offered(&c.Controller) && !c.sub.Discovery {
			list = append(list, ioSample(o, nvme.Opcode(i)))
		}
	}
	return list
}

// adminSamples returns the samples of the rows with this CNS, LID or FID.
func adminSamples(c *controller, id uint8) (list []sample) {
	add := func(kind string, nsid nsidRule, defined dwords, command func() *fabrictest.Command) {
		name := fmt.Sprintf("%s %02Xh", kind, id)
		list = append(list, sample{name, false, nsid, defined, command})
	}
	csi := map[bool]uint32{true: 0xFF000000}
	if row := c.IdentifyPage(nvme.CNS(id)); row != nil {
		rule, known := cnsRules[nvme.CNS(id)]
		if !known {
			rule = nsidIgnored
		}
		cntid := map[bool]uint32{true: 0xFFFF0000}[nvme.CNS(id) == nvme.CNSCommandSets]
		add("CNS", rule, dwords{0xFF | cntid, csi[row.CSI]}, func() *fabrictest.Command {
			c := identifyCommand(nvme.CNS(id), 0)
			c.SQE.SetCDW(10, c.SQE.CDW(10)|cntid) // this controller
			return c
		})
	}
	if p := c.LogPage(nvme.LID(id)); p != nil {
		lsi := map[bool]uint32{true: 0xFFFF0000}[slices.Contains(endurance, nvme.LID(id))]
		rule := map[bool]nsidRule{false: nsidLogController, true: nsidLogNamespace}[p.PerNamespace]
		add("log", rule, dwords{0xFFFF80FF, 0xFFFF | lsi, allBits, allBits, 1<<23 | csi[p.CSI]},
			func() *fabrictest.Command {
				c := logCommand(nvme.LID(id), 512, 0)
				c.SQE.SetCDW(11, c.SQE.CDW(11)|lsi&0x10000) // the group of namespace 1
				return c
			})
	}
	f := c.Feature(nvme.FID(id))
	if f == nil {
		return list
	}
	get, set := nsidIgnored, nsidSetController
	if f.FSP == nvme.FeatureScopeNamespace {
		get, set = nsidActive, nsidSetNamespace
		if rule, known := getRules[nvme.FID(id)]; known {
			get = rule
		}
		if rule, known := setRules[nvme.FID(id)]; known {
			set = rule
		}
	}
	add("get feature", get, dwords{0x7FF, allBits}, func() *fabrictest.Command {
		// EXHID of feature 81h
		return withData(getFeature(nvme.FID(id), nvme.FeatureCurrent, 1), int(f.Size))
	})
	bits, known := featureBits[nvme.FID(id)]
	if !known {
		bits = allBits
	}
	add("set feature", set, dwords{0x800000FF, bits}, func() *fabrictest.Command {
		cmd := setFeature(nvme.FID(id), featureValues[nvme.FID(id)])
		n, _ := c.Check(&cmd.SQE, 0)
		return withData(cmd, int(n))
	})
	return list
}

func ioSample(o *op, opcode nvme.Opcode) sample {
	// Without protection information and directives nothing uses PRINFO, STC and CDW14 and 15, and
	// CDW13 has hints (NVM section 3.3).
	s := sample{o.name, true, nsidActive, dwords{allBits, allBits, 0xC2FFFFFF}, nil}
	s.command = func() *fabrictest.Command { return command(opcode, 1, nil) }
	reservation := dwords{0xC000FF1F}
	switch {
	case opcode == nvme.NVMFlush:
		s.nsid, s.defined = nsidEvery, dwords{}
	case opcode == nvme.NVMDatasetManagement:
		s.defined = dwords{0xFF, 7}
		s.command = func() *fabrictest.Command { return dsm(1, true, [2]uint64{0, 1}) }
	case opcode == nvme.NVMCopy:
		s.defined[2] = 0xC0FF0FFF
		s.command = func() *fabrictest.Command {
			return copyTo(8, nvme.CopyRanges, source{blocks: 1})
		}
	case opcode == nvme.IOReservationRegister:
		s.defined, s.command = reservation, func() *fabrictest.Command { return register(1) }
	case opcode == nvme.IOReservationAcquire:
		s.defined = reservation
		s.command = func() *fabrictest.Command { return acquire(1, nvme.WriteExclusive) }
	case opcode == nvme.IOReservationRelease:
		s.defined = reservation
		s.command = func() *fabrictest.Command { return release(1, nvme.WriteExclusive) }
	case opcode == nvme.IOReservationReport:
		s.defined = dwords{allBits, 1}
		s.command = func() *fabrictest.Command {
			c := command(opcode, 1, make([]byte, nvme.ReservationStatusSize))
			c.SQE.Reservation().SetReport(nvme.ReservationStatusSize, true)
			return c
		}
	case o.flags&opBlocks != 0 && o.dir != 0:
		s.command = func() *fabrictest.Command { return rw(opcode, 1, 0, 1, make([]byte, 512)) }
	}
	return s
}

func withData(c *fabrictest.Command, n int) *fabrictest.Command {
	c.Data = make([]byte, n)
	return c
}

// sent has one sample, and sends changed ones.
type sent struct {
	sample
	kind   string // of the controller
	target *Target
	want   nvme.Status // of a sample with an NSID that its rule calls good
	send   func(change func(*nvme.SQE)) nvme.Status
}

// eachSample calls fn with each sample of an I/O controller and of a discovery controller.
func eachSample(t *testing.T, fn func(t *testing.T, s sent)) {
	// write protection, rotational media and a volatile cache bring more rows
	r := protectHarness(t, newProtectionStore(), subsystemOf(testSub,
		described(t, func(i *backend.Info) { i.Rotational, i.VolatileCache = true, true })))
	for kind, nqn := range map[string]string{"I/O": testSub, "discovery": nvme.DiscoveryNQN} {
		h := r.connectHost(0, on(nqn), func(a *connectArgs) { a.kato = 60000 })
		q := [2]*fabrictest.Queue{h.admin}
		if kind == "I/O" {
			q[1] = h.connectIO(0)
		}
		for _, s := range samples(r.target.find(nqn).lookup(h.cntlid)) {
			x := sent{sample: s, kind: kind, target: r.target}
			usual := nsidClasses[slices.Index(s.nsid[:], good)]
			x.send = func(change func(*nvme.SQE)) nvme.Status {
				c := s.command()
				c.SQE.SetNSID(usual)
				change(&c.SQE)
				return r.do(q[map[bool]int{true: 1}[s.io]], c).CQE.Status() &^ nvme.More
			}
			r.run(kind+" "+s.name, func(t *testing.T) {
				x.want = x.send(func(*nvme.SQE) {})
				fn(t, x)
			})
		}
	}
}

// TestNSIDs: each command with an NSID of each class.
func TestNSIDs(t *testing.T) {
	eachSample(t, func(t *testing.T, s sent) {
		for i, nsid := range nsidClasses {
			want := s.nsid[i]
			if want == good {
				want = s.want
			}
			testutil.Equal(t, s.send(func(sqe *nvme.SQE) { sqe.SetNSID(nsid) }), want, "NSID %#x",
				nsid)
		}
	})
}

// TestReserved: no value of the reserved bits of a command changes anything.
func TestReserved(t *testing.T) {
	eachSample(t, func(t *testing.T, s sent) {
		check := func(name string, change func(*nvme.SQE)) {
			t.Helper()
			testutil.Equal(t, s.send(change), s.want, "%s", name)
		}
		check("byte 1", func(sqe *nvme.SQE) { sqe.SetFlags(sqe.Flags() | 0x3C) })
		for i := 2; i < 6; i++ { // dwords 2 and 3, and the metadata pointer: there is none
			check(fmt.Sprintf("CDW%d", i), func(sqe *nvme.SQE) { sqe.SetCDW(i, allBits) })
		}
		for i, defined := range s.defined {
			check(fmt.Sprintf("CDW%d", 10+i), func(sqe *nvme.SQE) {
				sqe.SetCDW(10+i, sqe.CDW(10+i)&defined|^defined)
			})
		}
	})
}

// TestFlags: no command has PRPs, and only the commands of TestNoFusedCommands are fused (Base
// section 4.1.1).
func TestFlags(t *testing.T) {
	eachSample(t, func(t *testing.T, s sent) {
		for _, flags := range []uint8{0, 2 << 6, 3 << 6, 1<<6 | 1, 1<<6 | 2, 1<<6 | 3} {
			opcode := s.command().SQE.Opcode()
			if flags&3 != 0 && s.io && (opcode == nvme.NVMWrite || opcode == 0x05) {
				continue
			}
			testutil.Equal(t, s.send(func(sqe *nvme.SQE) { sqe.SetFlags(flags) }), invalidField,
				"flags %#x", flags)
		}
	})
}

// TestUnknownRows: structures, log pages and features that are not in the tables, and coded values
// of fields that are reserved (Base section 1.5).
func TestUnknownRows(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	for _, nqn := range []string{testSub, nvme.DiscoveryNQN} {
		h := r.connectHost(0, on(nqn))
		c := r.target.find(nqn).lookup(h.cntlid)
		for i := range 256 {
			cns, lid, fid := nvme.CNS(i), nvme.LID(i), nvme.FID(i)
			if c.IdentifyPage(cns) == nil {
				r.status(h.admin, identifyCommand(cns, 1), invalidField)
			}
			if c.LogPage(lid) == nil {
				r.status(h.admin, logCommand(lid, 512, 0), nvme.InvalidLogPage|nvme.DNR)
			}
			f := c.Feature(fid)
			for sel := range nvme.FeatureSelect(8) {
				if f == nil || sel > nvme.FeatureCapabilities {
					r.status(h.admin, getFeature(fid, sel, 0), invalidField)
				}
			}
			save := setFeature(fid, 0)
			save.SQE[43] |= 0x80
			if f == nil {
				r.status(h.admin, setFeature(fid, 0), invalidField)
				r.status(h.admin, save, invalidField)
			} else {
				r.status(h.admin, save, nvme.FeatureNotSaveable|nvme.DNR)
			}
		}
	}
}

// controllerStates are the states of TestOpcodes, by CC.
var controllerStates = map[string]nvme.CC{
	"not enabled": 0, "enabled": nvme.CCLinux, "shut down": nvme.CCLinux | nvme.CCShutdownNormal,
}

// badField has values of a field that a controller does not support: reserved values, values of
// unsupported functions, and values out of range. TestReserved tests reserved bits.
type badField struct {
	field              string // and the section that says so
	dword, shift, bits int
	values             []uint32
	want               nvme.Status
}

// badFields reads the bad fields of each sample, and of some kinds of samples.
func badFields(t *testing.T) map[string][]badField {
	t.Helper()
	table := map[string][]badField{}
	for _, row := range testutil.Rows(t, "bad_fields") {
		var samples, values string
		var f badField
		row.Scan(&samples, &f.field, &f.dword, &f.shift, &f.bits, &values,
			testutil.Named(&f.want, map[string]nvme.Status{
				"InvalidField": invalidField, "LBAOutOfRange": outOfRange,
				"DataSGLLengthInvalid": invalidLength,
				"FeatureNotSaveable":   nvme.FeatureNotSaveable | nvme.DNR,
				"KATOInvalid":          nvme.KATOInvalid | nvme.DNR,
				"CommandSetsRejected":  nvme.CommandSetsRejected | nvme.DNR,
				"HostIDInconsistent":   nvme.HostIDInconsistent | nvme.DNR,
			}))
		for word := range strings.FieldsSeq(values) { // a value, or a range
			first, last, _ := strings.Cut(word, "..")
			end := testutil.Value(strconv.ParseUint(cmp.Or(last, first), 0, 32))(t)
			for v := testutil.Value(strconv.ParseUint(first, 0, 32))(t); v <= end; v++ {
				f.values = append(f.values, uint32(v))
			}
		}
		testutil.MustTrue(t, len(f.values) > 0 == (f.field != "none"), "values of %s", samples)
		for sample := range strings.SplitSeq(samples, ", ") {
			table[sample] = append(table[sample], f)
		}
	}
	return table
}

// TestUnsupported: each field of each command with values that are not supported.
func TestUnsupported(t *testing.T) {
	table, used := badFields(t), map[string]bool{}
	eachSample(t, func(t *testing.T, s sent) {
		list, known := table[s.name]
		kind := ""
		if !s.io {
			kind = s.name[:max(0, strings.LastIndexByte(s.name, ' '))]
		}
		testutil.MustTrue(t, known || kind == "get feature", "the table has no row of it")
		used[s.name], used[kind] = true, true
		for _, f := range slices.Concat(table[kind], list) {
			for _, v := range f.values {
				st := s.send(func(sqe *nvme.SQE) {
					mask := allBits >> (32 - f.bits) << f.shift
					sqe.SetCDW(f.dword, sqe.CDW(f.dword)&^mask|v<<f.shift&mask)
				})
				testutil.Equal(t, st, f.want, "%s: %#x", f.field, v)
			}
		}
	})
	part := strings.Contains(flag.Lookup("test.run").Value.String(), "/") // of the samples
	for sample := range table {
		testutil.True(t, used[sample] || part, "there is no sample %s", sample)
	}
}

// TestStates: each command for the controller while that is not enabled, or is shut down (Base
// sections 3.1.4.5 and 3.6.2).
func TestStates(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	for _, nqn := range []string{testSub, nvme.DiscoveryNQN} {
		h := r.connectHost(0, on(nqn))
		list := samples(r.target.find(nqn).lookup(h.cntlid))
		for state, cc := range controllerStates {
			r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
			if state == "enabled" {
				continue // see the other tests
			}
			if cc != 0 {
				r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(cc)))
			}
			for _, s := range list {
				if !s.io {
					r.run(state+" "+s.name, func(*testing.T) {
						r.status(h.admin, s.command(), sequenceError)
					})
				}
			}
		}
	}
}

// TestANASamples: each command while its namespace is not accessible (Base section 8.1.1.10).
func TestANASamples(t *testing.T) {
	// Features of a namespace that is not accessible; 84h is refused in one state only.
	accesses := []string{
		"get feature 05h", "get feature 82h", "get feature 83h",
		"set feature 05h", "set feature 82h", "set feature 83h",
	}
	usual := map[string]nvme.Status{}
	for _, state := range []nvme.ANAState{
		nvme.ANAStateOptimized, nvme.ANAStateNonOptimized, nvme.ANAStateInaccessible,
		nvme.ANAStateChange, nvme.ANAStatePersistentLoss,
	} {
		eachSample(t, func(t *testing.T, s sent) {
			testutil.Must(t, s.target.SetANAStates(1, states{1: state}))
			st := s.send(func(sqe *nvme.SQE) {
				if s.nsid[1] == good {
					sqe.SetNSID(nsidClasses[1])
				}
			})
			if state == nvme.ANAStateOptimized {
				usual[s.kind+s.name] = st
			}
			want := usual[s.kind+s.name]
			if s.io || slices.Contains(accesses, s.name) ||
				s.name == "set feature 84h" && state == nvme.ANAStatePersistentLoss {
				want = cmp.Or(anaStatuses[state], want)
			}
			testutil.Equal(t, st, want, "%v", state)
		})
	}
}

// TestOpcodes: every opcode, and every type of Fabrics command, on each kind of queue and in each
// state of the controller.
func TestOpcodes(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	for _, nqn := range []string{testSub, nvme.DiscoveryNQN} {
		for state, cc := range controllerStates {
			h := r.connectHost(0, on(nqn))
			r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
			if cc != 0 {
				r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(cc)))
			}
			r.run(state+" "+nqn[len(nqn)-4:], func(t *testing.T) {
				c := r.target.find(nqn).lookup(h.cntlid)
				opcodes(r, h.admin, &adminOps, c, state == "enabled")
				fabricsTypes(r, h.admin, cc, map[nvme.FabricsType]nvme.Status{
					nvme.FabricsConnect:     sequenceError,                    // Base section 6.3
					nvme.FabricsPropertySet: nvme.Success,                     // of CC
					nvme.FabricsPropertyGet: nvme.Success,                     // of CC
					nvme.FabricsDisconnect:  nvme.InvalidQueueType | nvme.DNR, // Base section 6.4
				}, invalidOpcode)
			})
			h.hangUp()
		}
	}
	r.run("unconnected", func(*testing.T) {
		q := r.dial(0)
		for i := range 256 {
			if op := nvme.Opcode(i); op != nvme.FabricsOpcode {
				r.status(q, command(op, 1, nil), sequenceError)
			}
		}
		fabricsTypes(r, q, 0, map[nvme.FabricsType]nvme.Status{
			nvme.FabricsConnect: invalidLength, // without data
		}, sequenceError)
	})
	r.run("I/O", func(*testing.T) {
		h := r.connectHost(1)
		opcodes(r, h.io[0], &ioOps, r.target.find(testSub).lookup(h.cntlid), true)
		fabricsTypes(r, h.io[0], 0, map[nvme.FabricsType]nvme.Status{
			nvme.FabricsConnect:    sequenceError,
			nvme.FabricsDisconnect: nvme.Success,
		}, invalidOpcode)
	})
}

// opcodes sends each opcode but that of Fabrics commands, and nothing with it.
func opcodes(r *harness, q *fabrictest.Queue, table *[256]op, c *controller, ready bool) {
	r.t.Helper()
	for i := range 256 {
		op := nvme.Opcode(i)
		cmd := command(op, 1, nil)
		if op == nvme.FabricsOpcode {
			continue
		}
		r.send(q, cmd)
		r.w.Settle()
		st := cmd.CQE.Status() &^ nvme.More
		switch {
		case !table[i].offered(&c.Controller):
			testutil.Equal(r.t, st, invalidOpcode, "opcode %02Xh", i)
		case !ready: // only Fabrics commands
			testutil.True(r.t, st == sequenceError, "%s: %v", table[i].name, st)
		case cmd.Done && (st == invalidOpcode || st == sequenceError): // an event may wait
			r.t.Errorf("%s: %v", table[i].name, st)
		}
	}
}

// fabricsTypes sends each type of Fabrics command, Disconnect last. For the properties it is an
// access to CC, which is cc.
func fabricsTypes(r *harness, q *fabrictest.Queue, cc nvme.CC,
	want map[nvme.FabricsType]nvme.Status, other nvme.Status,
) {
	r.t.Helper()
	for i := range 256 {
		typ := nvme.FabricsDisconnect + 1 + nvme.FabricsType(i)
		st, known := want[typ]
		if !known {
			st = other
		}
		c := propertySetCommand(nvme.PropertyCC, uint64(cc))
		c.SQE[4] = byte(typ)
		r.status(q, c, st)
	}
}

// The tables of commands have a column for each gate. Here are the same columns from the
// specification and the ADRs, in other words, and every opcode is sent in every state.

// column holds the properties of a command by the specification.
type column struct {
	// group is r or w for the read or write group, or - for a command with a row of its own, in the
	// figures of Base section 8.1.22.1 and NVM section 5.7.
	group byte
	// changes: not among the commands that are allowed for a write protected namespace (Base
	// section 8.1.16, NVM section 5.6); for Dataset Management, with AD.
	changes bool
	// limited: it reads or changes blocks (ADR 0026).
	limited bool
	// reauth: f is refused first, l later, s starts the time of the host and is served, - counts as
	// idle (ADR 0032).
	reauth byte
}

// ioColumns are the I/O commands that a controller may have (NVM section 3, Base section 7). All of
// them are for a namespace, and not available where ANA makes that inaccessible (NVM section 5.1).
var ioColumns = map[nvme.Opcode]column{
	0x00: {'w', false, false, 'l'}, // Flush
	0x01: {'w', true, true, 'f'},   // Write
	0x02: {'r', false, true, 'f'},  // Read
	0x04: {'w', true, true, 'l'},   // Write Uncorrectable
	0x05: {'r', false, true, 'l'},  // Compare
	0x08: {'w', true, true, 'l'},   // Write Zeroes
	0x09: {'w', true, true, 'l'},   // Dataset Management
	0x0C: {'r', false, true, 'l'},  // Verify
	0x0D: {'-', false, false, 'l'}, // Reservation Register
	0x0E: {'-', false, false, 'l'}, // Reservation Report
	0x11: {'-', false, false, 'l'}, // Reservation Acquire
	0x15: {'-', false, false, 'l'}, // Reservation Release
	0x19: {'w', true, true, 'l'},   // Copy, as the namespace that it writes to
}

// adminAgain are the admin commands (Base section 5) that move data or change something.
var adminAgain = map[nvme.Opcode]bool{
	0x02: true,  // Get Log Page
	0x06: true,  // Identify
	0x08: false, // Abort
	0x09: true,  // Set Features
	0x0A: true,  // Get Features
	0x0C: false, // Asynchronous Event Request
	0x14: true,  // Device Self-test
	0x18: false, // Keep Alive
}

func passes(groups string) map[byte]bool {
	m := map[byte]bool{}
	for _, g := range []byte(groups) {
		m[g] = true
	}
	return m
}

// TestGateColumns: each row of a table agrees with the specification.
func TestGateColumns(t *testing.T) {
	for i := range 256 {
		op := nvme.Opcode(i)
		want, io := ioColumns[op]
		o := &ioOps[i]
		got := column{
			"-rw"[o.group], o.changes != changeNone, o.limit != limitNone, "-slf"[o.reauth],
		}
		switch {
		case io != (o.execute != nil):
			t.Errorf("I/O command %#x: a row %v, a column %v", i, o.execute != nil, io)
		case io && got != want:
			t.Errorf("%s: %+v, want %+v", o.name, got, want)
		case io && o.ana != anaNSID:
			t.Errorf("%s: ANA states do not count", o.name)
		case !io && o.gates != gates{}:
			t.Errorf("I/O command %#x is none", i)
		}
		starts, admin := adminAgain[op]
		o = &adminOps[i]
		all := gates{ana: o.ana, reauth: map[bool]reauthGate{true: reauthStarts}[starts]}
		testutil.True(t, admin == (o.execute != nil) && o.gates == all,
			"admin command %#x: %+v, want a row %v that starts the time %v", i, o.gates, admin,
			starts)
		o = &fabricsOps[i]
		testutil.True(t, o.gates == (gates{}), "%s: %+v", o.name, o.gates)
	}
}

// gateHarness has a target with everything that commands depend on, and one namespace.
func gateHarness(t *testing.T, change ...func(*subsystems.Config)) *harness {
	sub := ramSubsystem(t, 1)
	for _, f := range change {
		f(&sub)
	}
	r := newHarness(t, 1)
	kept := newMarkStore()
	kept.wake = r.w.Reactors[0].Wake
	r.target.shared.Reservations = new(memoryStore)
	r.target.shared.Protection, r.target.shared.Uncorrectable = newProtectionStore(), kept
	r.must(r.target.AddSubsystem(sub))
	return r
}

// gateSample is a command for namespace 1 that succeeds if no gate is shut, or fails with st: the
// host has no key.
func gateSample(op nvme.Opcode) (c *fabrictest.Command, st nvme.Status) {
	switch op {
	case nvme.IOReservationAcquire:
		return acquire(1, nvme.WriteExclusive), reservationConflict // Base section 7.5
	case nvme.IOReservationRelease:
		return release(1, nvme.WriteExclusive), reservationConflict // Base section 7.7
	}
	return ioSample(&ioOps[op], op).command(), nvme.Success
}

// gateState is a state in which every opcode is sent.
type gateState struct {
	name string
	// enter returns the queue that the commands are sent on.
	enter func(t *testing.T) (*harness, *fabrictest.Queue)
	// refused returns the status of a refused command; 0: as in no state.
	refused func(op nvme.Opcode, c column) nvme.Status
	waits   bool // it is limited, and waits
}

// gateStates are the states, by name.
func gateStates() (list []gateState) {
	plain := func(prepare func(r *harness, h *host), change ...func(*subsystems.Config),
	) func(*testing.T) (*harness, *fabrictest.Queue) {
		return func(t *testing.T) (*harness, *fabrictest.Queue) {
			r := gateHarness(t, change...)
			h := r.connectHost(1)
			prepare(r, h)
			return r, h.io[0]
		}
	}
	add := func(s gateState) { list = append(list, s) }
	add(gateState{
		name: "none", enter: plain(func(*harness, *host) {}),
		refused: func(nvme.Opcode, column) nvme.Status { return 0 },
	})
	protected := func(_ nvme.Opcode, c column) nvme.Status {
		if c.changes {
			return writeProtected
		}
		return 0
	}
	add(gateState{
		name: "read only", refused: protected, enter: plain(func(*harness, *host) {},
			func(c *subsystems.Config) { c.Namespaces[0].ReadOnly = true }),
	})
	add(gateState{
		name: "write protected", refused: protected, enter: plain(func(r *harness, h *host) {
			r.ok(h.admin, protectCommand(1, nvme.WriteProtect))
		}),
	})
	for state, st := range anaStatuses {
		add(gateState{
			name: "ANA " + state.String(), enter: plain(func(r *harness, _ *host) {
				r.must(r.target.SetANAStates(1, states{1: state}))
			}),
			refused: func(nvme.Opcode, column) nvme.Status { return st },
		})
	}
	add(gateState{
		name: "hidden", refused: func(nvme.Opcode, column) nvme.Status { return inactive },
		enter: plain(func(*harness, *host) {},
			func(c *subsystems.Config) { c.Namespaces[0].Hosts = []string{"nqn.2026-11.test:a"} }),
	})
	add(gateState{
		name: "limited", waits: true, refused: func(nvme.Opcode, column) nvme.Status { return 0 },
		enter: plain(func(r *harness, h *host) { r.ok(h.io[0], readBlocks(8)()) },
			func(c *subsystems.Config) { c.Namespaces[0].Limits = qos.Limits{IOPS: 1} }),
	})
	add(gateState{
		name: "unproven",
		enter: func(t *testing.T) (*harness, *fabrictest.Queue) {
			x := authenticated(t)
			a := (&host{args: adminArgs(testSub), cntlid: x.cntlid()}).ioArgs(3)
			q, _ := x.connectUnproven(0, a)
			return x.harness, q
		},
		refused: func(nvme.Opcode, column) nvme.Status { return authenticationRequired },
	})
	for later, refused := range map[bool]string{false: "f", true: "fl"} {
		add(gateState{
			name: fmt.Sprintf("due, later %v", later),
			enter: func(t *testing.T) (*harness, *fabrictest.Queue) {
				x := authenticated(t)
				x.w.Advance(everyHour)
				if later {
					x.ok(x.admin, identifyCommand(nvme.CNSController, 0))
					x.w.Advance(10 * time.Second)
				}
				return x.harness, x.io[0]
			},
			refused: func(_ nvme.Opcode, c column) nvme.Status {
				if passes(refused)[c.reauth] {
					return nvme.AuthenticationRequired
				}
				return 0
			},
		})
	}
	return list
}

// authenticated has a host that has authenticated, and has to do so again each hour.
func authenticated(t *testing.T) *reauthHarness {
	r := gateHarness(t)
	p := &auth.Policy{
		Keys: []*auth.Key{authKey(t, hostSecret)}, ControllerKey: authKey(t, controllerSecret),
		Groups: []auth.Group{auth.GroupNull}, Reauthenticate: everyHour,
	}
	r.target.SetHostPolicy(testHost, p)
	x := &reauthHarness{harness: r, p: p}
	x.connect(1)
	return x
}

func (x *reauthHarness) cntlid() uint16 { return x.target.Controllers()[0].CNTLID }

// TestGates: every I/O opcode in every state. The sequence reservation_types has the states of
// reservations.
func TestGates(t *testing.T) {
	for _, s := range gateStates() {
		t.Run(s.name, func(t *testing.T) {
			r, q := s.enter(t)
			for i := range 256 {
				op := nvme.Opcode(i)
				if _, known := ioColumns[op]; known || op == nvme.FabricsOpcode {
					continue
				}
				want := invalidOpcode
				if s.name == "unproven" {
					want = authenticationRequired
				}
				r.status(q, command(op, 1, nil), want)
			}
			for op, c := range ioColumns {
				t.Run(ioOps[op].name, func(t *testing.T) {
					r, q := s.enter(t) // changes of one command do not affect the others
					sent, want := gateSample(op)
					if st := s.refused(op, c); st != 0 {
						want = st
					}
					if !s.waits || !c.limited {
						r.status(q, sent, want)
						return
					}
					r.send(q, sent)
					r.w.Settle()
					testutil.True(t, !sent.Done, "it passes the limit: %v", sent.CQE.Status())
				})
			}
		})
	}
}

// TestGatesOfAdminCommands: every admin command completes in the same way with any I/O gates shut.
// ANA states also gate features, see TestANASamples.
func TestGatesOfAdminCommands(t *testing.T) {
	run := func(t *testing.T, shut func(r *harness, h *host)) (got []nvme.Status) {
		r := gateHarness(t)
		h := r.connectHost(1)
		shut(r, h)
		for _, s := range samples(r.target.find(testSub).lookup(h.cntlid)) {
			if !s.io {
				c := s.command()
				c.SQE.SetNSID(1)
				got = append(got, r.do(h.admin, c).CQE.Status())
			}
		}
		return got
	}
	want := run(t, func(*harness, *host) {})
	for name, shut := range map[string]func(r *harness, h *host){
		"reserved": func(r *harness, _ *host) {
			holder := r.numbered(1, 1)
			r.ok(holder.io[0], register(2))
			r.ok(holder.io[0], acquire(2, nvme.ExclusiveAccess))
		},
		"write protected": func(r *harness, h *host) {
			r.ok(h.admin, protectCommand(1, nvme.WriteProtect))
		},
		"limited": func(r *harness, h *host) {
			r.target.SetHostLimits(testHost, qos.Limits{IOPS: 1})
			r.ok(h.io[0], readBlocks(8)())
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i, st := range run(t, shut) {
				testutil.Equal(t, st, want[i], "sample %d", i)
			}
		})
	}
}
