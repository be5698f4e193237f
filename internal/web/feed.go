package web

import (
	"context"
	"sync"
	"time"
)

// summary is the line of a target in the overview.
type summary struct {
	Name string `json:"name"` // "": the target that serves the page
	// Error is the reason why there is no newer state. Time is the time of the last state, by the
	// clock of the target that serves the page; it is zero if there was none.
	Error      string    `json:"error"`
	Time       time.Time `json:"time"`
	Ready      int       `json:"ready"` // namespaces
	Namespaces int       `json:"namespaces"`
	Hosts      int       `json:"hosts"`
	Problems   int       `json:"problems"`
	Read       float64   `json:"read"` // bytes in a second
	Written    float64   `json:"written"`
}

// feed has the newest state of a target while pages are open. Any goroutine may use it.
type feed struct {
	opened chan struct{} // gets one when a page is opened and no states are being made

	mu      sync.Mutex // guards the fields below
	pages   int
	running bool   // states are being made
	state   []byte // JSON; nil: not yet
	about   summary
	changed chan struct{} // closed at the next state
}

func newFeed() feed {
	return feed{opened: make(chan struct{}, 1), changed: make(chan struct{})}
}

// join starts making states, unless that is already in progress.
func (f *feed) join() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages++
	if !f.running {
		f.running = true
		f.opened <- struct{}{}
	}
}

func (f *feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages--
}

// goesOn reports whether to make more states. If not, it forgets the last one, unless the target is
// unreachable: a page that changes from one target to another leaves before it joins.
func (f *feed) goesOn(ctx context.Context) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = f.pages > 0 && ctx.Err() == nil
	if !f.running && f.about.Error == "" {
		f.state, f.about = nil, summary{}
	}
	return f.running
}

func (f *feed) get() (state []byte, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.changed
}

// summary returns the summary of the last state; name is the name of the target on the page.
func (f *feed) summary(name string) summary {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.about
	s.Name = name
	return s
}

func (f *feed) publish(state []byte, about *summary) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.about = state, *about
	close(f.changed)
	f.changed = make(chan struct{})
}
