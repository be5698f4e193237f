package reactor

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	leastSpin = 200 * time.Microsecond
	mostSpin  = time.Millisecond
	// singleCPUSpin is for a machine with one CPU, where the loop yields after each empty poll.
	singleCPUSpin = 100 * time.Microsecond
	// spinWakes is the length of a spin in wake-ups. For work that comes later, a sleep is cheaper.
	spinWakes = 8

	wakeSamples = 15
	wakePause   = 300 * time.Microsecond // time for a thread to fall asleep
)

// DefaultSpin returns the longest spin (Config.Spin) that suits this machine: the time of some
// wake-ups of a thread, but at least 200 µs and at most 1 ms; 100 µs if there is one CPU. The first
// call measures for about 10 ms. Any goroutine may call it.
func DefaultSpin() time.Duration {
	if singleCPU() {
		return singleCPUSpin
	}
	return spinFor(wakeTime())
}

// spinFor returns the longest spin on a machine on which waking a thread takes w.
func spinFor(w time.Duration) time.Duration { return min(max(leastSpin, spinWakes*w), mostSpin) }

// wakeTime returns the time on this machine until a thread that sleeps in epoll_wait continues
// after another thread has woken it. It is usually 10 to 30 µs, but more than 100 µs on emulated
// processors. It is measured once, for about 10 ms, and is 0 if that fails.
var wakeTime = sync.OnceValue(func() time.Duration {
	epfd, evfd, err := sys.EpollEvent()
	if err != nil {
		return 0
	}
	defer func() { _, _ = unix.Close(epfd), unix.Close(evfd) }()
	var took [wakeSamples]time.Duration
	var events [1]unix.EpollEvent
	for i := range took {
		begun := make(chan time.Time, 1)
		go func() {
			time.Sleep(wakePause)
			begun <- time.Now()
			_, _ = unix.Write(evfd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}()
		for n := 0; n <= 0; {
			if n, err = unix.EpollWait(epfd, events[:], -1); err != nil && err != unix.EINTR {
				return 0
			}
		}
		now := time.Now()
		took[i] = now.Sub(<-begun)
	}
	slices.Sort(took[:])
	return took[wakeSamples/2]
})
