package bench

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// ProgressLine is the progress of a measurement on a terminal.
type ProgressLine struct {
	Out   *os.File // nil: it shows nothing
	last  Progress
	rates []float64 // the most recent ones
}

// Show updates the line.
func (l *ProgressLine) Show(p Progress) {
	if l.Out == nil {
		return
	}
	if p.Name != l.last.Name {
		l.last, l.rates = Progress{}, make([]float64, sparkline)
	}
	d := (p.Elapsed - l.last.Elapsed).Seconds()
	rate := math.Max(float64(p.Ops-l.last.Ops)/d, 0)
	l.rates = append(l.rates[1:], rate)
	of := ""
	if p.Of > 0 {
		of = fmt.Sprintf(" of %v", p.Of)
	}
	_, _ = fmt.Fprintf(l.Out, "\r\x1b[K%s  %v%s  %s  %.0f IOPS  %.1f MiB/s", p.Name,
		p.Elapsed.Round(time.Second), of, bars(l.rates), rate,
		float64(p.Bytes-l.last.Bytes)/d/(1<<20))
	l.last = p
}

// Clear removes the line.
func (l *ProgressLine) Clear() {
	if l.Out != nil {
		_, _ = l.Out.WriteString("\r\x1b[K")
	}
}

const sparkline = 20 // columns

// bars draws values, which are not negative, as characters of that height.
func bars(values []float64) string {
	most := slices.Max(values)
	bars := []rune(" ▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, v := range values {
		i := 0
		if v > 0 {
			i = 1 + int(v/most*float64(len(bars)-2))
		}
		b.WriteRune(bars[i])
	}
	return b.String()
}
