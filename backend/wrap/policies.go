package wrap

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
)

// DelayConfig describes a slow device.
type DelayConfig struct {
	// Latency is added to each operation, and a random time up to Jitter, evenly distributed.
	Latency, Jitter time.Duration
	// Ops are the delayed operations; none means all.
	Ops  []backend.Op
	Seed uint64
}

// Delay returns a wrapper that delays operations, any number at a time, before the device.
func Delay(dev backend.Device, cfg DelayConfig) backend.Device {
	return &device{Device: dev, policy: func(n uint64) policy {
		return &delay{DelayConfig: cfg, random: newRandom(cfg.Seed, n)}
	}}
}

type delay struct {
	DelayConfig
	random *rand.Rand
}

func (d *delay) admit(io *backend.IO, now int64) (int64, error) {
	if !affects(d.Ops, io.Op) {
		return now, nil
	}
	due := now + int64(d.Latency)
	if d.Jitter > 0 {
		due += d.random.Int64N(int64(d.Jitter) + 1)
	}
	return due, nil
}

// newRandom returns the random numbers of the n-th channel of a device.
func newRandom(seed, n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }

// ErrorConfig describes a failing device.
type ErrorConfig struct {
	// Err is the outcome of failing operations; it wraps one of the sentinels of package backend.
	Err error
	// OneIn makes one in OneIn operations fail, at random; 1 or less makes all fail.
	OneIn int
	// Offset and Length are the range, in bytes, of the failing operations: an operation fails if
	// it touches the range. A Length of 0 extends to the end. A flush touches everything.
	Offset, Length int64
	// Ops are the failing operations; none means all.
	Ops  []backend.Op
	Seed uint64
}

// Error returns a wrapper that makes some operations fail before the device sees them.
func Error(dev backend.Device, cfg ErrorConfig) backend.Device {
	cfg.Length = cmp.Or(cfg.Length, math.MaxInt64-cfg.Offset)
	cfg.Err = fmt.Errorf("by configuration: %w", cfg.Err)
	return &device{Device: dev, policy: func(n uint64) policy {
		return &failure{ErrorConfig: cfg, random: newRandom(cfg.Seed, n)}
	}}
}

type failure struct {
	ErrorConfig
	random *rand.Rand
}

func (f *failure) admit(io *backend.IO, now int64) (int64, error) {
	touches := io.Op == backend.OpFlush || io.Off-f.Offset < f.Length && io.Off+io.Len > f.Offset
	if affects(f.Ops, io.Op) && touches && (f.OneIn <= 1 || f.random.IntN(f.OneIn) == 0) {
		return 0, f.Err
	}
	return now, nil
}

// LimitConfig describes a device with limited throughput.
type LimitConfig struct {
	// IOPS is the maximum of operations per second, Bandwidth that of bytes read and written per
	// second; 0 for no limit.
	IOPS, Bandwidth int64
}

// Limit returns a wrapper that limits the throughput over all reactors. After a pause the first
// operations, worth 10 ms, are not delayed.
func Limit(dev backend.Device, cfg LimitConfig) backend.Device {
	l := &limit{}
	if cfg.IOPS > 0 {
		l.perOp = float64(time.Second) / float64(cfg.IOPS)
	}
	if cfg.Bandwidth > 0 {
		l.perByte = float64(time.Second) / float64(cfg.Bandwidth)
	}
	return &device{Device: dev, policy: func(uint64) policy { return l }}
}

// burst is the time that a limited device may be behind its schedule, in nanoseconds.
const burst = int64(10 * time.Millisecond)

// limit is a schedule that all channels share: each operation takes its share of the time.
type limit struct {
	perOp, perByte float64 // nanoseconds
	next           atomic.Int64
}

func (l *limit) admit(io *backend.IO, now int64) (int64, error) {
	cost := l.perOp
	if io.Op <= backend.OpWrite {
		cost = max(cost, float64(io.Len)*l.perByte)
	}
	for {
		next := l.next.Load()
		due := max(next, now-burst)
		if l.next.CompareAndSwap(next, due+int64(cost)) {
			return due, nil
		}
	}
}
