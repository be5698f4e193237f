package random

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/backend/file"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/targettest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/tests/e2e"
	"github.com/nvmf-target/nvmf-target/tests/harness"
)

// modelRun compares a target with the model.
type modelRun struct {
	*e2e.Env
	ctx     context.Context
	seed    uint64
	rnd     *rand.Rand
	m       *model
	storage []backend.Device // by NSID - 1
	hosts   []modelHost      // by controller
	control *control.Client
	// transition is the duration of the ANA Change state.
	transition time.Duration
	done       [2 * modelBatch]host.Completion

	commands int // sent so far
	recent   []*modelCommand
	// The number of commands by name.
	succeeded, refused map[string]int
}

const (
	waitModel = time.Second
	// modelLife is the number of commands between restarts of the target.
	modelLife = 2000
)

// TestModel sends random commands of several hosts with several controllers, over both transports:
// one at a time to the same blocks, and many at once to different blocks. Every status, all data
// read and the final content must agree with the model. In between, hosts leave and come back,
// namespaces and the ANA states of the ports change, and the target restarts.
//
// NVMF_MODEL_COMMANDS is the number of commands, and NVMF_MODEL_SEED the seed, which is logged. The
// state of the target and a file are in TMPDIR; for a million commands it should be in memory.
func TestModel(t *testing.T) {
	t.Parallel()
	commands := 8000
	if s := os.Getenv("NVMF_MODEL_COMMANDS"); s != "" {
		commands = int(modelNumber(t, s))
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("NVMF_MODEL_SEED"); s != "" {
		seed = modelNumber(t, s)
	}
	x := newModelRun(t, seed)
	state := filepath.Join(t.TempDir(), "state")
	for x.commands < commands {
		ok := t.Run("", func(t *testing.T) {
			x.start(t, state)
			for end := min(x.commands+modelLife, commands); x.commands < end; {
				x.step()
			}
			x.accessible()
			x.compareAll()
		})
		testutil.MustTrue(t, ok, "NVMF_MODEL_SEED=%d: a difference after %d commands", seed,
			x.commands)
		x.m.restart()
	}
	t.Logf("NVMF_MODEL_SEED=%d: %d commands; succeeded: %v, refused: %v", seed, x.commands,
		x.succeeded, x.refused)
	for _, k := range modelKinds {
		testutil.True(t, x.succeeded[k.name] != 0, "no %s has succeeded", k.name)
	}
}

func modelNumber(t *testing.T, s string) uint64 {
	n := testutil.Value(strconv.ParseUint(s, 10, 64))(t)
	return n
}

// keptDevice is storage that outlives the target, with a variable size.
type keptDevice struct {
	backend.Device
	size   int64
	atomic int
}

func (d *keptDevice) Info() backend.Info {
	i := d.Device.Info()
	i.Size, i.PhysicalBlockSize = d.size, d.atomic
	return i
}

func (d *keptDevice) Close() error { return nil }

// newModelRun opens the storage: RAM and a file with blocks of 512 bytes, and RAM with 4096.
func newModelRun(t *testing.T, seed uint64) *modelRun {
	x := &modelRun{
		seed: seed, rnd: rand.New(rand.NewPCG(seed, 0)),
		succeeded: map[string]int{}, refused: map[string]int{},
	}
	f := testutil.Value(file.Open(file.Config{
		Path: filepath.Join(t.TempDir(), "disk"), Size: 256 << 10, BlockSize: 512, Buffered: true,
	}))(t)
	x.storage = []backend.Device{
		harness.OpenRAM(t, 512<<10, 512), f, harness.OpenRAM(t, 512<<10, 4096),
	}
	x.m = &model{
		logs: make([]targettest.Notifications, len(modelControllers)),
		ana:  make([]modelANALog, len(modelControllers)),
	}
	for _, c := range modelControllers {
		x.m.hosts = append(x.m.hosts, c.host)
	}
	for i, d := range x.storage {
		info := d.Info()
		ns := &modelNamespace{
			nsid: uint32(i + 1), blockSize: info.BlockSize, atomic: uint32(4096 / info.BlockSize),
			blocks: uint64(info.Size) / uint64(info.BlockSize), content: make([]byte, info.Size),
			group: 1, volatile: info.Volatile,
		}
		ns.Keys = map[int]uint64{}
		ns.Notify = func(h int, typ nvme.ReservationNotification) { x.m.tell(ns, h, typ) }
		x.m.namespaces = append(x.m.namespaces, ns)
		t.Cleanup(func() { testutil.Check(t, d.Close()) })
	}
	return x
}

// device returns the storage of a namespace with its current size.
func (x *modelRun) device(i int) backend.Device {
	ns := x.m.namespaces[i]
	return &keptDevice{x.storage[i], int64(ns.blocks) * int64(ns.blockSize), 4096}
}

// start starts the target and connects the hosts.
func (x *modelRun) start(t *testing.T, state string) {
	o := e2e.Options{
		Reactors: 2, Memory: 16, StateDir: state, IWARP: x.rnd.IntN(4) == 0,
		Control:    filepath.Join(t.TempDir(), "control"),
		Transition: [...]time.Duration{time.Millisecond, time.Hour}[x.rnd.IntN(2)],
	}
	x.transition = o.Transition
	x.control = control.NewClient(o.Control)
	t.Cleanup(x.control.Close)
	for i := range x.storage {
		o.Devices = append(o.Devices, x.device(i))
	}
	x.Env = e2e.New(t, o)
	x.Env.Log.Limit(64 << 10)
	ctx, cancel := context.WithTimeout(context.Background(), 10*testutil.Patience)
	t.Cleanup(cancel)
	x.ctx = ctx
	x.hosts = make([]modelHost, len(modelControllers))
	for i := range x.hosts {
		x.connectModel(i)
	}
	for range 4 {
		x.change()
		x.ana()
	}
	t.Cleanup(func() {
		for i := range x.hosts {
			for _, q := range x.hosts[i].queues {
				_ = q.Close()
			}
		}
	})
}

// step sends some commands, or does something else.
func (x *modelRun) step() {
	x.T.Helper()
	switch n := x.rnd.IntN(1000); {
	case n < 4:
		x.reconnect(x.rnd.IntN(len(x.hosts)))
	case n < 12:
		x.change()
	case n < 32:
		x.ana()
	case n < 54:
		x.log(x.rnd.IntN(len(x.hosts)), x.rnd.IntN(20))
	case n < 140:
		x.race()
	case n < 450:
		x.check([]*modelCommand{x.command(nil, modelReservationKinds)})
	case n < 650:
		x.check([]*modelCommand{x.command(nil, modelKinds)})
	default:
		x.check(x.batch(2 + x.rnd.IntN(modelBatch-1)))
	}
}

// batch makes commands with results that do not depend on their order.
func (x *modelRun) batch(n int) (batch []*modelCommand) {
	for len(batch) < n {
		c := x.command(batch, modelKinds)
		if c == nil {
			return batch
		}
		batch = append(batch, c)
	}
	return batch
}

// command makes a random command that can be sent together with others, nil if none was found.
func (x *modelRun) command(batch []*modelCommand, kinds []modelKind) *modelCommand {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
next:
	for range 10 {
		c := &modelCommand{c: x.rnd.IntN(len(x.hosts)), slot: len(batch)}
		w := x.rnd.IntN(total)
		i := 0
		for ; w >= kinds[i].weight; i++ {
			w -= kinds[i].weight
		}
		k := &kinds[i]
		if c.name = k.name; !k.admin {
			c.queue = 1 + x.rnd.IntN(modelQueues)
		}
		build := k.plan(x, c)
		for _, o := range batch {
			if c.conflicts(o) {
				continue next
			}
		}
		build()
		x.scatter(c)
		return c
	}
	return nil
}

// scatter describes the data of a command by several data blocks, where possible.
func (x *modelRun) scatter(c *modelCommand) {
	if c.queue == 0 || !modelControllers[c.c].variant.IsRDMA || x.rnd.IntN(8) > 0 {
		return
	}
	for i := range c.ops {
		if len(c.ops[i].Data) >= 64 {
			c.ops[i].Blocks = 2
		}
	}
}

// check sends commands and compares their results with the model.
func (x *modelRun) check(batch []*modelCommand) {
	x.T.Helper()
	x.send(batch)
	x.trace(batch)
	for _, c := range batch {
		for half := range c.ops {
			if got := c.status(half); got != c.want[half] {
				x.fatal(c, "command %d: %v, want %v", half, got, c.want[half])
			}
		}
		if !c.want[0].OK() {
			x.refused[c.name]++
		} else if x.succeeded[c.name]++; c.check != nil {
			c.check()
		}
		if d := c.differs(); d != "" {
			x.fatal(c, "%s", d)
		}
	}
}

func (c *modelCommand) status(half int) nvme.Status { return c.got[half].Status() &^ nvme.More }

// compareAll reads everything that a host may read, all notifications and all reservations.
func (x *modelRun) compareAll() {
	x.T.Helper()
	x.anaLogs(0)
	for i := range x.hosts {
		x.log(i, x.m.logs[i].Len()+1)
	}
	for _, ns := range x.m.namespaces {
		for i := range x.hosts {
			for slba := uint64(0); slba < ns.blocks && x.m.refusal(i, ns, false).OK(); {
				n := uint32(min(modelTransfer/uint64(ns.blockSize), ns.blocks-slba))
				if ns.Marked(slba, n) {
					n = 1
				}
				c := &modelCommand{name: "Read", c: i, queue: 1, data: ns.at(slba, n)}
				c.want[0] = x.m.reads(i, ns, slba, n)
				c.add().Read(ns.nsid, slba, n, x.memory(c, len(c.data)))
				x.check([]*modelCommand{c})
				slba += uint64(n)
			}
			c := &modelCommand{name: "Reservation Report", c: i, queue: 1}
			x.buildReport(c, ns)
			x.check([]*modelCommand{c})
		}
	}
}

// trace keeps the last commands for the message about a difference.
func (x *modelRun) trace(batch []*modelCommand) {
	for _, c := range batch {
		x.commands += len(c.ops)
	}
	x.recent = append(x.recent, batch...)
	if n := len(x.recent); n > 1000 {
		x.recent = append([]*modelCommand(nil), x.recent[n-40:]...)
	}
}

func (c *modelCommand) String() string {
	text := fmt.Sprintf("%s, controller %d (host %d, %s), queue %d", c.name, c.c,
		modelControllers[c.c].host, modelControllers[c.c].variant.Name, c.queue)
	for i := range c.ops {
		text += fmt.Sprintf("\n        % x: %v", c.ops[i].SQE[:], c.status(i))
	}
	return text
}

// fatal ends the test. c is nil if the difference is not in a single command.
func (x *modelRun) fatal(c *modelCommand, format string, a ...any) {
	x.T.Helper()
	text := fmt.Sprintf(format, a...)
	if c != nil && len(c.got) > 0 {
		text += "\n    " + c.String()
	}
	var last strings.Builder
	for _, c := range x.recent[max(0, len(x.recent)-40):] {
		fmt.Fprintf(&last, "\n    %s", c)
	}
	x.T.Fatalf("%s\nthe last commands:%s", text, last.String())
}
