package reactor

import (
	"testing"
	"time"
)

func BenchmarkIterate(b *testing.B) {
	for _, work := range []int{0, 32} {
		b.Run([]string{"empty", "busy"}[min(work, 1)], func(b *testing.B) {
			r := start(b, Config{CPU: -1})
			do(b, r, func() {
				p := &poller{poll: func(int) int { return work }}
				r.Attach(p)
				r.After(int64(time.Hour), func() {})
				b.ReportAllocs()
				for b.Loop() {
					r.iterate()
				}
			})
		})
	}
}

func BenchmarkWakeAwake(b *testing.B) {
	r := start(b, Config{CPU: -1})
	do(b, r, func() {
		for b.Loop() {
			r.Wake()
		}
	})
}

func BenchmarkPostRoundTrip(b *testing.B) {
	for name, spin := range spins {
		b.Run(name, func(b *testing.B) {
			r := start(b, Config{CPU: -1, Spin: spin})
			done := make(chan struct{})
			for b.Loop() {
				r.Post(func() { done <- struct{}{} })
				<-done
			}
		})
	}
}
