package random

import (
	"slices"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/namespaces"
	"github.com/nvmf-target/nvmf-target/tests/e2e"
)

// key returns the key of a registrant, mostly its own, or no key.
func (x *modelRun) key(ns *modelNamespace, h int) uint64 {
	if own := ns.Keys[h]; own != 0 && x.rnd.IntN(8) > 0 {
		return own
	}
	return x.rnd.Uint64N(4)
}

// anyKey returns the key of a registrant, or a random key.
func (x *modelRun) anyKey(ns *modelNamespace) uint64 {
	if key := ns.Keys[x.rnd.IntN(len(x.m.hosts))]; key != 0 {
		return key
	}
	return x.rnd.Uint64N(4)
}

// reserve begins a reservation command, mostly of a registrant.
func (x *modelRun) reserve(c *modelCommand) (ns *modelNamespace, h int) {
	ns = x.m.namespaces[x.rnd.IntN(len(x.m.namespaces))]
	for i := 0; i < 4 && ns.Keys[x.m.hosts[c.c]] == 0; i++ {
		c.c = x.rnd.IntN(len(x.m.hosts))
	}
	c.state(ns, true)
	c.notifications()
	return ns, x.m.hosts[c.c]
}

// keys makes a reservation command with its keys.
func (x *modelRun) keys(c *modelCommand, code nvme.Opcode, ns *modelNamespace, current,
	other uint64,
) *nvme.ReservationSQE {
	n := len(nvme.ReservationKeys{})
	if code == nvme.IOReservationRelease {
		n = nvme.ReservationReleaseSize
	}
	var keys nvme.ReservationKeys
	keys.Set(current, other)
	op := c.add()
	op.SQE.SetOpcode(code)
	op.SQE.SetNSID(ns.nsid)
	op.Data = x.memory(c, n)
	copy(op.Data, keys[:])
	return op.SQE.Reservation()
}

func (x *modelRun) register(c *modelCommand) func() {
	first := c.c
	ns, h := x.reserve(c)
	if x.rnd.IntN(2) == 0 {
		c.c, h = first, x.m.hosts[first]
	}
	return func() {
		act := [...]nvme.ReservationAction{
			nvme.ReservationRegister, nvme.ReservationRegister, nvme.ReservationRegister,
			nvme.ReservationReplace, nvme.ReservationReplace, nvme.ReservationUnregister,
		}[x.rnd.IntN(6)]
		current, other, iekey := x.key(ns, h), x.rnd.Uint64N(16)%5, x.rnd.IntN(4) == 0
		ptpl := nvme.KeepPTPL
		switch x.rnd.IntN(16) {
		case 0:
			ptpl = nvme.SetPTPL
		case 1, 2:
			ptpl = nvme.ClearPTPL
		}
		x.keys(c, nvme.IOReservationRegister, ns, current, other).Set(act, iekey, 0, ptpl)
		if c.want[0] = x.m.path(c.c, ns); c.want[0].OK() {
			c.want[0] = ns.Register(h, act, iekey, current, other, ptpl)
		}
	}
}

func (x *modelRun) acquire(c *modelCommand) func() {
	ns, h := x.reserve(c)
	return func() {
		act, typ := nvme.ReservationAction(x.rnd.IntN(3)), 1+x.rnd.IntN(6)
		current, other := x.key(ns, h), x.anyKey(ns)
		x.keys(c, nvme.IOReservationAcquire, ns, current, other).
			Set(act, false, nvme.ReservationType(typ), 0)
		if c.want[0] = x.m.path(c.c, ns); c.want[0].OK() {
			c.want[0] = ns.Acquire(h, act, current, other, typ)
		}
	}
}

func (x *modelRun) release(c *modelCommand) func() {
	ns, h := x.reserve(c)
	return func() {
		act, typ, current := nvme.ReservationRelease, ns.Type, x.key(ns, h)
		switch x.rnd.IntN(12) {
		case 0:
			act = nvme.ReservationClear
		case 1, 2:
			typ = 1 + x.rnd.IntN(6)
		}
		x.keys(c, nvme.IOReservationRelease, ns, current, 0).
			Set(act, false, nvme.ReservationType(typ), 0)
		if c.want[0] = x.m.path(c.c, ns); c.want[0].OK() {
			c.want[0] = ns.Release(h, act, current, typ)
		}
	}
}

func (x *modelRun) report(c *modelCommand) func() {
	ns := x.m.namespaces[x.rnd.IntN(len(x.m.namespaces))]
	c.state(ns, false)
	return func() { x.buildReport(c, ns) }
}

func (x *modelRun) buildReport(c *modelCommand, ns *modelNamespace) {
	s, list := ns.Report(modelHostID)
	const size = nvme.RegisteredControllerSize
	op := c.add()
	c.want[0] = x.m.path(c.c, ns)
	op.SQE.SetOpcode(nvme.IOReservationReport)
	op.SQE.SetNSID(ns.nsid)
	op.Data = x.memory(c, nvme.ReservationStatusSize+len(modelControllers)*size)
	op.SQE.Reservation().SetReport(len(op.Data), true)
	want := nvme.Append(nil, &s)
	for i := range list {
		want = nvme.Append(want, &list[i])
	}
	c.data = append(want, make([]byte, len(op.Data)-len(want))...)
	c.check = func() {
		// in the order of the hosts
		entries := slices.Collect(slices.Chunk(op.Data[nvme.ReservationStatusSize:], size))
		entries = entries[:len(list)]
		slices.SortFunc(entries, func(a, b []byte) int { return int(a[16]) - int(b[16]) })
		copy(op.Data[nvme.ReservationStatusSize:], slices.Concat(entries...))
	}
}

// modelFeatures are the features that a namespace has.
var modelFeatures = []nvme.FID{
	nvme.FeatureWriteProtect, nvme.FeatureReservationMask, nvme.FeatureReservationPersist,
}

// ofNamespace begins a feature command.
func (x *modelRun) ofNamespace(c *modelCommand, code nvme.Opcode, fid nvme.FID, nsid uint32,
	value uint32,
) {
	op := c.add()
	op.SQE.SetOpcode(code)
	op.SQE.SetNSID(nsid)
	op.SQE.Features().Set(fid, value)
}

func (x *modelRun) getFeature(c *modelCommand) func() {
	ns := x.m.namespaces[x.rnd.IntN(len(x.m.namespaces))]
	fid := modelFeatures[x.rnd.IntN(len(modelFeatures))]
	c.state(ns, false)
	return func() {
		x.ofNamespace(c, nvme.AdminGetFeatures, fid, ns.nsid, 0)
		c.want[0] = x.m.feature(c.c, ns, fid, false)
		want := uint32(ns.protected())
		switch {
		case fid == nvme.FeatureReservationMask:
			want = ns.Mask
		case fid == nvme.FeatureReservationPersist && ns.PTPL:
			want = 1
		case fid == nvme.FeatureReservationPersist:
			want = 0
		}
		c.check = func() {
			if got := c.got[0].DW0(); got != want {
				x.fatal(c, "feature %#x is %d, want %d", fid, got, want)
			}
		}
	}
}

func (x *modelRun) setFeature(c *modelCommand) func() {
	ns := x.m.namespaces[x.rnd.IntN(len(x.m.namespaces))]
	fid := modelFeatures[x.rnd.IntN(len(modelFeatures))]
	list, nsid := []*modelNamespace{ns}, ns.nsid
	switch {
	case fid == nvme.FeatureWriteProtect: // for one controller at a time
		c.uses = append(c.uses, modelUse{^uint32(c.c), true, 0, 1, true})
	case x.rnd.IntN(2) == 0:
		list, nsid = x.m.namespaces, nvme.NSIDAll
	}
	for _, ns := range list {
		c.state(ns, true)
	}
	return func() {
		var v uint32
		switch fid {
		case nvme.FeatureWriteProtect:
			v = x.protection()
		case nvme.FeatureReservationMask:
			v = x.rnd.Uint32N(8) << 1 * (x.rnd.Uint32N(4) / 3) // mostly nothing
		case nvme.FeatureReservationPersist:
			v = x.rnd.Uint32N(4) / 3
		}
		x.ofNamespace(c, nvme.AdminSetFeatures, fid, nsid, v)
		c.want[0] = x.m.feature(c.c, ns, fid, true)
		if nsid == nvme.NSIDAll {
			c.want[0] = x.m.anyPath(c.c)
		}
		for _, ns := range list {
			switch {
			case !c.want[0].OK() || ns.hidden[x.m.hosts[c.c]]:
			case fid == nvme.FeatureWriteProtect:
				c.want[0] = ns.protect(nvme.WriteProtection(v))
			case fid == nvme.FeatureReservationMask:
				ns.Mask = v
			case fid == nvme.FeatureReservationPersist:
				ns.PTPL = v == 1
			}
		}
	}
}

// protection returns a random state, mostly no protection, and rarely one that ends with a restart
// of the target.
func (x *modelRun) protection() uint32 {
	switch n := x.rnd.IntN(200); {
	case n == 0:
		return uint32(nvme.WriteProtectUntilPowerCycle)
	case n < 20:
		return 3 + x.rnd.Uint32N(5)
	case n < 60:
		return uint32(nvme.WriteProtect)
	}
	return uint32(nvme.NoWriteProtect)
}

// log reads n notifications of a controller, followed by empty ones.
func (x *modelRun) log(i, n int) {
	x.T.Helper()
	c := x.hosts[i].c
	x.Ping(c) // a notification precedes later commands
	for range n {
		b, err := hosttest.GetLog(x.ctx, c, nvme.LogReservation, nvme.NSIDAll, 0,
			nvme.ReservationLogSize, 0, false)
		x.Must(err)
		got := testutil.Value(nvme.Parse[nvme.ReservationLog](b))(x.T)
		if want := x.m.logs[i].Read(); *got != want {
			x.fatal(nil, "controller %d: notification %+v, want %+v", i, *got, want)
		}
	}
}

// change changes the configuration of a namespace: whether it is read-only, its ANA group, its
// hosts, its size, or its existence.
func (x *modelRun) change() {
	x.T.Helper()
	i := x.rnd.IntN(len(x.m.namespaces))
	ns := x.m.namespaces[i]
	switch n := x.rnd.IntN(5); {
	case len(ns.hidden) == modelHosts:
		x.add(i)
		return
	case n == 0:
		ns.readOnly = !ns.readOnly && x.rnd.IntN(3) == 0
	case n == 1:
		ns.group = 1 + x.rnd.Uint32N(modelGroups)
	case n == 2:
		if ns.hidden = nil; x.rnd.IntN(2) == 0 {
			ns.hidden = map[int]bool{x.rnd.IntN(modelHosts): true}
		}
	case n == 3:
		x.Gone(x.Target.RemoveNamespace(e2e.SubNQN, ns.nsid))
		ns.hidden = map[int]bool{0: true, 1: true, 2: true, 3: true}
		x.anaLogs(0)
		return
	default:
		x.resize(i)
		return
	}
	x.Must(x.Target.UpdateNamespace(e2e.SubNQN, x.configOf(i), nil))
	x.anaLogs(0)
}

// add adds a removed namespace again, unchanged.
func (x *modelRun) add(i int) {
	x.T.Helper()
	x.m.namespaces[i].hidden = nil
	x.m.namespaces[i].reopened()
	cfg := x.configOf(i)
	cfg.Device = x.device(i)
	x.Must(x.Target.AddNamespace(e2e.SubNQN, cfg))
	x.anaLogs(0)
}

// resize exchanges the storage of a namespace for the same storage with another size.
func (x *modelRun) resize(i int) {
	x.T.Helper()
	ns := x.m.namespaces[i]
	most := uint64(len(ns.content) / ns.blockSize)
	ns.blocks = most - x.rnd.Uint64N(most/4)
	ns.reopened()
	x.Must(x.Target.UpdateNamespace(e2e.SubNQN, x.configOf(i),
		func(backend.Device) (backend.Device, error) { return x.device(i), nil }))
}

func (x *modelRun) configOf(i int) namespaces.Config {
	ns := x.m.namespaces[i]
	cfg := namespaces.Config{NSID: ns.nsid, ReadOnly: ns.readOnly, ANAGroup: ns.group}
	for h := range modelHosts {
		if ns.hidden != nil && !ns.hidden[h] {
			cfg.Hosts = append(cfg.Hosts, modelHostNQN(h))
		}
	}
	return cfg
}
