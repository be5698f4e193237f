package web

import (
	"context"
	"sync"
	"time"
)

// summary is the line of a target in the overview.
type summary struct {
	Name string `json:"name"` // "": the target that serves the page
	// Error says why there is no newer state, Time when the last one came, by the clock of the
	// target that serves the page; it is zero if there was none.
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
	opened chan struct{} // gets one when a page is opened and no states are made

	mu      sync.Mutex // guards what follows
	pages   int
	running bool   // states are made
	state   []byte // JSON; nil: not yet
	about   summary
	changed chan struct{} // closed when there is another state
}

func newFeed() feed {
	return feed{opened: make(chan struct{}, 1), changed: make(chan struct{})}
}

// join begins to make states, unless that is done already.
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

// goesOn reports whether more states are to be made. If not, it forgets the last one, unless the
// target cannot be reached: a page that goes from one target to another leaves before it joins.
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

// summary is that of the last state; name is what the page calls the target.
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
