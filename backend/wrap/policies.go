package wrap

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
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
