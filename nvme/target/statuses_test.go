package target

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/fabrictest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
)

// The tests of this file are made from the tables of commands, Identify data structures, log pages
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
