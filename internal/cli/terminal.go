package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/control"
)

// terminal is the screen of top. close restores it.
type terminal struct {
	in, out *os.File
	before  unix.Termios
	history map[string][]point // of the last minute, by table and name
	key     byte               // sort key
}

// point is a value in the history.
type point struct {
	at   time.Time
	iops float64
}

const (
	// alternate screen, no cursor, no line wrap
	screenOn  = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	screenOff = "\x1b[?7h\x1b[?25h\x1b[?1049l"

	minute    = time.Minute
	sparkline = 20 // columns
)

const interrupt = 3 // Ctrl-C

// openTerminal makes the terminal pass on each key at once without echo. It fails if in or out is
// not a terminal.
func openTerminal(in, out *os.File) (*terminal, error) {
	t := &terminal{in: in, out: out, history: map[string][]point{}, key: 'i'}
	if !isTerminal(out) {
		return nil, unix.ENOTTY
	}
	now, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		return nil, err
	}
	t.before = *now
	now.Lflag &^= unix.ICANON | unix.ECHO | unix.ISIG
	now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(in.Fd()), unix.TCSETS, now); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *terminal) close() error {
	_, err := t.out.WriteString(screenOff)
	return errors.Join(err, unix.IoctlSetTermios(int(t.in.Fd()), unix.TCSETSW, &t.before))
}

// show draws rates until the user leaves, a signal ends the program, or the target does not answer.
func (t *terminal) show(ctx context.Context, c *control.Client,
	interval time.Duration,
) (err error) {
	defer func() { err = errors.Join(err, t.close()) }() // also after a panic
	ctx, cancel := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	keys, gone := make(chan byte, 1), make(chan struct{})
	go func() {
		defer close(gone)
		defer cancel()
		t.readKeys(ctx, keys)
	}()
	defer func() {
		cancel()
		<-gone
	}()
	if _, err := t.out.WriteString(screenOn); err != nil {
		return err
	}
	old, err := ask(ctx, c)
	if err != nil {
		return leave(ctx, err)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	r := new(load)
	for {
		if err := t.draw(r); err != nil {
			return err
		}
		select {
		case <-tick.C:
			now, err := ask(ctx, c)
			if err != nil {
				return leave(ctx, err)
			}
			r = between(&old, &now)
			old = now
			t.remember(r)
		case t.key = <-keys:
		case <-resized:
		case <-ctx.Done():
			return nil
		}
	}
}

// leave returns err, or nil if the user has left.
func leave(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// keyWait is the interval at which readKeys checks ctx, in milliseconds.
const keyWait = 100

// readKeys sends sort keys until the user leaves, the terminal is gone, or ctx ends.
func (t *terminal) readKeys(ctx context.Context, keys chan<- byte) {
	fds := []unix.PollFd{{Fd: int32(t.in.Fd()), Events: unix.POLLIN}}
	var b [16]byte
	for ctx.Err() == nil {
		n, err := unix.Poll(fds, keyWait)
		if errors.Is(err, unix.EINTR) || n == 0 {
			continue
		}
		if err == nil {
			n, err = unix.Read(int(t.in.Fd()), b[:])
		}
		if err != nil || n == 0 {
			return
		}
		for _, key := range b[:n] {
			switch {
			case key == 'q' || key == interrupt:
				return
			case strings.IndexByte("ibln", key) >= 0:
				select {
				case keys <- key:
				default: // the target is slow; the user can press it again
				}
			}
		}
	}
}

// remember adds rates to the history and drops rates older than a minute.
func (t *terminal) remember(r *load) {
	history := map[string][]point{}
	r.tables(func(title string, rows []rate) {
		for _, v := range rows {
			list := append(t.history[title+v.Name], point{r.Time, v.IOPS})
			for r.Time.Sub(list[0].at) >= minute {
				list = list[1:]
			}
			history[title+v.Name] = list
		}
	})
	t.history = history
}

// line draws the history as bars, scaled to the largest value.
func line(list []point, now time.Time) string {
	sum, n := make([]float64, sparkline), [sparkline]float64{}
	for _, p := range list {
		i := sparkline - 1 - int(now.Sub(p.at)*sparkline/minute)
		sum[i], n[i] = sum[i]+p.iops, n[i]+1
	}
	for i := range sum {
		sum[i] /= max(n[i], 1)
	}
	return bars(sum)
}

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

func (t *terminal) draw(r *load) error {
	width, height := 80, 24
	if s, err := unix.IoctlGetWinsize(int(t.out.Fd()), unix.TIOCGWINSZ); err == nil && s.Col > 0 {
		width, height = int(s.Col), int(s.Row)
	}
	r.sortBy(t.key)
	text := []string{"nvmf-target top   sort: i IOPS, b bandwidth, l load, n name   leave: q"}
	if r.Seconds == 0 {
		text = append(text, "", "The first look takes one interval.")
	}
	r.tables(func(title string, rows []rate) {
		text = append(text, "", row(width, title, append(headings(title), "LAST MINUTE")))
		for _, v := range rows {
			text = append(text, row(width, plain(v.Name), append(v.cells(title),
				line(t.history[title+v.Name], r.Time))))
		}
	})
	var b bytes.Buffer
	b.WriteString("\x1b[H")
	for i, l := range text[:min(len(text), height)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(l + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	_, err := t.out.Write(b.Bytes())
	return err
}

// columns are the widths of the cells after the name. The next one is stageColumn wide.
var columns = [...]int{9, 12, 12, 10, 8, 8}

const stageColumn = 11

// row formats a line of a table. The name gets the width that the cells leave.
func row(width int, name string, cells []string) string {
	room := width
	for _, c := range columns {
		room -= c
	}
	last := ""
	if room >= 12+sparkline+2 {
		room -= sparkline + 2
		last = "  " + cells[len(columns)+1]
	}
	if room >= 40+stageColumn {
		room -= stageColumn
		last = fmt.Sprintf("%*s", stageColumn, cells[len(columns)]) + last
	}
	room = max(room, 12)
	if utf8.RuneCountInString(name) > room { // NQNs differ at the end
		r := []rune(name)
		name = "…" + string(r[len(r)-room+1:])
	}
	text := fmt.Sprintf("%-*s", room, name)
	for i, c := range columns {
		text += fmt.Sprintf("%*s", c, cells[i])
	}
	return text + last
}
