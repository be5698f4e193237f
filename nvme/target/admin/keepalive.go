package admin

import "time"

const (
	// KeepAliveGranularity is KAS, in units of 100 ms: timeouts are rounded up to it.
	KeepAliveGranularity = 10
	// MaxKeepAlive is the largest timeout, in milliseconds: a day. More is refused, since a timeout
	// is only ever rounded up (Base section 3.9).
	MaxKeepAlive = 24 * 3600 * 1000
	// discoveryTimeout applies to a discovery controller if its host asked for no timeout (Base
	// section 3.1.3.3: two minutes).
	discoveryTimeout = int64(120e9)
	// keepAliveChecks is the number of times per period that the timer looks for traffic.
	keepAliveChecks = 2
	// marginWindow is how long, at least, the smallest margin of a controller is shown.
	marginWindow = int64(60e9)
)

// KeepAlive watches all queues of a controller: with TBKAS any command counts (Base section 3.9).
// Its methods get the loop's time in nanoseconds and the number of commands until then.
type KeepAlive struct {
	period    int64  // nanoseconds; 0 is off
	seen      uint64 // commands when traffic was last noticed, at lastSeen
	lastSeen  int64
	lastCheck int64

	// The rest is how near a host came to its timeout. It ends nothing.

	heardAt int64  // when the host was heard, or a check noticed that it had been
	heard   uint64 // commands until then
	// The longest silences that began in the marginWindow of windowAt, and in the one before it.
	silence  [2]int64
	windowAt int64
}

// RoundKeepAlive rounds a timeout, in milliseconds.
func RoundKeepAlive(ms uint32) uint32 {
	const unit = KeepAliveGranularity * 100
	return (ms + unit - 1) / unit * unit
}

// Start restarts the timer. The timeout in milliseconds is from RoundKeepAlive; 0: off, but for a
// discovery controller. It reports whether the timer runs.
func (k *KeepAlive) Start(ms uint32, discovery bool, now int64, commands uint64) bool {
	k.period = int64(ms) * 1e6
	if k.period == 0 && discovery {
		k.period = discoveryTimeout
	}
	if k.period == 0 {
		return false
	}
	*k = KeepAlive{
		period: k.period, seen: k.seen, lastSeen: now, lastCheck: now, heardAt: now,
		heard: commands, windowAt: now,
	}
	return true
}

// Timeout is 0 if the timer does not run.
func (k *KeepAlive) Timeout() time.Duration { return time.Duration(k.period) }

// Next returns the time until the next Check, at a time that is the same for all controllers with
// this timeout: an idle target wakes up once for all of them.
func (k *KeepAlive) Next(now int64) int64 {
	step := k.period / keepAliveChecks
	return step - now%step
}

// hear notes that the host has sent n commands until now, after it was silent for so long.
func (k *KeepAlive) hear(now int64, n uint64, silent int64) {
	if now-k.windowAt >= marginWindow {
		k.silence, k.windowAt = [2]int64{0, k.silence[0]}, now
	}
	k.silence[0] = max(k.silence[0], silent)
	k.heardAt, k.heard = now, n
}

// Check reports whether the timer has expired. enabled: the controller is. While it is not, a host
// cannot send Keep Alive, and has another time limit.
func (k *KeepAlive) Check(now int64, commands uint64, enabled bool) (expired bool) {
	// If this process itself stood still, commands may wait unread: a check that comes late proves
	// nothing about the host.
	late := now-k.lastCheck > k.period
	switch {
	case late || !enabled:
		k.hear(now, commands, 0)
	case commands != k.heard: // silent until the last check, at least
		k.hear(now, commands, k.lastCheck-k.heardAt)
	}
	k.lastCheck = now
	if commands != k.seen || late || !enabled {
		k.seen, k.lastSeen = commands, now
	}
	return now-k.lastSeen >= k.period
}

// Command notes a Keep Alive command, which is counted.
func (k *KeepAlive) Command(now int64, commands uint64) {
	if commands == k.heard+1 { // it has sent nothing else
		k.hear(now, commands, now-k.heardAt)
	}
}

// Left returns the time that is left of the timeout, at least, if the host sends nothing more, and
// the margin: the smallest part that was left in the last one or two minutes, to within half of the
// timeout while the host sends other commands. Traffic since the last check is noticed only at the
// next one.
func (k *KeepAlive) Left(now int64, commands uint64, enabled bool) (left, margin time.Duration) {
	rest := k.lastSeen + k.period - now
	if k.period == 0 || commands != k.seen || !enabled {
		rest = k.period
	}
	silent := max(k.silence[0], k.silence[1])
	if enabled && commands == k.heard {
		silent = max(silent, now-k.heardAt)
	}
	return time.Duration(max(rest, 0)), time.Duration(max(k.period-silent, 0))
}
