package group

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Version is a version of the configuration that gateways share. Versions are not changed.
type Version struct {
	Format int `json:"format"`
	// Number counts from 1.
	Number uint64 `json:"number"`
	// Gateway has stored it, at Time by its clock.
	Gateway string    `json:"gateway"`
	Time    time.Time `json:"time"`
	// Of is the version with the same text that it repeats; 0: it is new.
	Of uint64 `json:"of,omitempty"`
	// Text is the configuration.
	Text string `json:"text"`
}

// ID is the number, and a hash of the text.
func (v *Version) ID() string {
	return fmt.Sprintf("%d %x", v.Number, sha256.Sum256([]byte(v.Text)))
}

const (
	versionFormat = 1
	// MaxText is the maximum size of a configuration in bytes.
	MaxText = 48 << 10
	// MaxVersions is the number of versions that are kept, if MaxRecord leaves room.
	MaxVersions = 100
)

// versions reads the versions, newest first. It refuses all of them if one is not valid.
func versions(data []byte) (list []Version, err error) {
	if len(data) > MaxRecord {
		return nil, fmt.Errorf("the configuration of the group has %d bytes, more than %d",
			len(data), MaxRecord)
	}
	end := max(len(data)-len("12345678\n"), 0)
	for line := range bytes.Lines(data[:end]) {
		var v Version
		if err := json.Unmarshal(line, &v); err != nil {
			return nil, fmt.Errorf("the configuration of the group is damaged: %w", err)
		}
		switch {
		case v.Format != versionFormat:
			return nil, fmt.Errorf("the configuration of the group has format %d: this version "+
				"knows only %d", v.Format, versionFormat)
		case len(v.Text) > MaxText:
			return nil, fmt.Errorf("version %d of the configuration of the group has %d bytes, "+
				"more than %d", v.Number, len(v.Text), MaxText)
		case v.Number == 0 || len(list) > 0 && v.Number >= list[len(list)-1].Number:
			return nil, errors.New("the configuration of the group is damaged: its versions are " +
				"not in order")
		}
		list = append(list, v)
	}
	if len(data) > 0 && string(data[end:]) != checksum(data[:end]) {
		return nil, errors.New("the configuration of the group is damaged: its checksum is wrong")
	}
	return list, nil
}

// encode is the inverse of versions: it returns a line of JSON for each version, and a line with
// the CRC32C of all. It leaves out old versions that do not fit.
func encode(list []Version) (data []byte) {
	for _, v := range list[:min(len(list), MaxVersions)] {
		line, _ := json.Marshal(&v) // numbers and texts
		if len(data)+len(line)+len("\n12345678\n") > MaxRecord {
			break
		}
		data = append(append(data, line...), '\n')
	}
	return append(data, checksum(data)...)
}

// Shared follows the configuration that the gateways share. Any goroutine may call its methods.
type Shared struct {
	gateway string
	connect func() (Engine, error)
	apply   func(*Version) error
	log     *slog.Logger

	wake   chan struct{}
	ending context.Context
	stop   context.CancelFunc // ends it
	ended  sync.WaitGroup

	looking sync.Mutex    // held while a version is put into force
	failed  failed        // protected by looking
	looked  bool          // one was, with the settings of this start; protected by looking
	id      string        // of the one in force, "" if it is not known; protected by looking
	using   chan struct{} // has a value while the engine is used
	engine  Engine        // nil: there is no connection
	unwatch context.CancelFunc
	watched sync.WaitGroup

	mu      sync.Mutex
	applied uint64
	problem error
}

// ErrUnread means that the cluster cannot be asked.
var ErrUnread = errors.New("the configuration of the group cannot be read")

// failed is a version that could not be applied. A try may change storage before it is undone, so
// the number of looks between two tries grows.
type failed struct {
	number      uint64
	err         error
	wait, pause int // looks until the next try, and after it
}

// LookEvery is the time between two looks at the configuration; a watch makes them earlier. Tests
// change it.
var LookEvery = 10 * time.Second

// Share follows the configuration in the record of an engine. applied is the ID of the version
// that is in force; apply puts a newer one into force, or returns an error and changes nothing.
func Share(gateway string, connect func() (Engine, error), applied string,
	apply func(*Version) error, log *slog.Logger,
) *Shared {
	ctx, stop := context.WithCancel(context.Background())
	s := &Shared{
		gateway: gateway, connect: connect, apply: apply, log: log,
		wake: make(chan struct{}, 1), ending: ctx, stop: stop, unwatch: func() {},
		using: make(chan struct{}, 1),
	}
	var hash string
	if n, _ := fmt.Sscan(applied, &s.applied, &hash); n == 2 {
		s.id = applied
	}
	s.ended.Go(func() {
		tick := time.NewTicker(LookEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			_ = s.Look(ctx) // it is in the log
			select {
			case <-s.wake:
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return s
}

// Stop ends it; the version in force stays. It waits until the connection is closed or ctx ends.
func (s *Shared) Stop(ctx context.Context) {
	s.stop()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.ended.Wait()
		s.using <- struct{}{}
		s.disconnect()
		<-s.using
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

// State returns the number of the version in force, and why a newer one is not.
func (s *Shared) State() (applied uint64, problem error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied, s.problem
}

// use waits until the caller may use the engine. The caller takes the value of s.using when it has
// finished.
func (s *Shared) use(ctx context.Context) error {
	select {
	case s.using <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: the cluster does not answer", ErrUnread)
	}
}

// Versions returns the stored versions, newest first.
func (s *Shared) Versions(ctx context.Context) ([]Version, error) {
	if err := s.use(ctx); err != nil {
		return nil, err
	}
	defer func() { <-s.using }()
	list, _, err := s.read(ctx)
	return list, err
}

// Put stores a text as the next version, and puts it into force here. base is the number of the
// version that it is to replace, 0 for any. It fails with ErrConflict if another one was stored
// since. With an error and a number it was stored, but is not in force here.
func (s *Shared) Put(ctx context.Context, text string, base, of uint64) (uint64, error) {
	number, err := s.put(ctx, text, base, of)
	if err == nil {
		err = s.Look(ctx)
	}
	return number, err
}

// put stores the version of Put.
func (s *Shared) put(ctx context.Context, text string, base, of uint64) (uint64, error) {
	if err := s.use(ctx); err != nil {
		return 0, err
	}
	defer func() { <-s.using }()
	list, version, err := s.read(ctx)
	if err != nil {
		return 0, err
	}
	applied, _ := s.State()
	next := Version{
		Format: versionFormat, Number: applied + 1, Gateway: s.gateway, Time: time.Now().UTC(),
		Of: of, Text: text,
	}
	if len(list) > 0 {
		next.Number = max(next.Number, list[0].Number+1)
		if base != 0 && base != list[0].Number {
			return 0, fmt.Errorf("version %d was stored by gateway %.100q since version %d: %w",
				list[0].Number, list[0].Gateway, base, ErrConflict)
		}
	}
	data := encode(append([]Version{next}, list...))
	if _, err := versions(data); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err = s.engine.Put(ctx, data, version); err != nil {
		return 0, err
	}
	return next.Number, nil
}

// Look puts the newest version into force now.
func (s *Shared) Look(ctx context.Context) error {
	s.looking.Lock()
	defer s.looking.Unlock()
	list, err := s.Versions(ctx)
	if err == nil {
		err = s.follow(list)
	}
	if ctx.Err() != nil || s.ending.Err() != nil {
		return err // of this caller
	}
	s.mu.Lock()
	changed := fmt.Sprint(err) != fmt.Sprint(s.problem)
	s.problem = err
	s.mu.Unlock()
	if changed && err != nil {
		s.log.Error("the configuration of the group cannot be followed", "err", err)
	}
	return err
}

// follow puts the newest version of the list into force, unless it is or its next try is later. It
// returns the reason why it is not. The caller has s.looking.
func (s *Shared) follow(list []Version) error {
	applied, _ := s.State()
	switch {
	case len(list) == 0 && applied == 0:
		return nil
	case len(list) == 0 || list[0].Number < applied:
		return fmt.Errorf("the configuration of the group has lost version %d, which stays in "+
			"force here", applied)
	case list[0].Number == applied && s.id != "" && list[0].ID() != s.id:
		return fmt.Errorf("version %d of the configuration of the group was lost, and gateway "+
			"%.100q has stored another one with this number: the lost one stays in force here "+
			"until a newer one is stored", applied, list[0].Gateway)
	case list[0].Number == applied && s.looked:
		return nil
	}
	f := &s.failed
	if f.number != list[0].Number {
		*f = failed{number: list[0].Number, pause: 1}
	} else if f.wait--; f.wait >= 0 {
		return f.err
	}
	if err := s.apply(&list[0]); err != nil {
		f.wait, f.pause = f.pause, min(2*f.pause+1, 30)
		f.err = fmt.Errorf("version %d of the configuration of the group cannot be applied: %w",
			list[0].Number, err)
		return f.err
	}
	s.looked, s.id = true, list[0].ID()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied = list[0].Number
	return nil
}

// read returns the versions and the version of the record. The caller has s.using.
func (s *Shared) read(ctx context.Context) ([]Version, uint64, error) {
	if s.ending.Err() != nil {
		return nil, 0, s.ending.Err()
	}
	if s.engine == nil {
		e, err := s.connect()
		if err != nil {
			return nil, 0, fmt.Errorf("%w: %w", ErrUnread, err)
		}
		watch, cancel := context.WithCancel(s.ending)
		s.engine, s.unwatch = e, cancel
		s.watched.Go(func() {
			keepWatching(watch, e, LookEvery, func() {
				select {
				case s.wake <- struct{}{}:
				default:
				}
			})
		})
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	data, version, err := s.engine.Get(ctx)
	if errors.Is(err, ErrFenced) {
		s.disconnect()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrUnread, err)
	}
	list, err := versions(data)
	return list, version, err
}

// disconnect ends the connection. The caller has s.using.
func (s *Shared) disconnect() {
	s.unwatch()
	s.watched.Wait()
	if s.engine != nil {
		s.engine.Close()
		s.engine = nil
	}
}
