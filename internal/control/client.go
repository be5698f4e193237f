package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/observed"
)

// Client sends requests to a target.
type Client struct {
	// DryRun: Put and Delete change nothing and return the changes that they would make, with the
	// affected hosts.
	DryRun   bool
	at, base string
	http     http.Client
}

// NewClient makes a client of the target at a socket. It connects on first use.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Client{at: socket, base: "http://target", http: http.Client{
		Transport: &http.Transport{DialContext: dial},
	}}
}

// NewTLSClient makes a client of the target at an address, HOST:PORT. It connects on first use.
func NewTLSClient(address string, c httpd.Certificates) (*Client, error) {
	config, err := c.Client()
	if err != nil {
		return nil, err
	}
	return &Client{at: address, base: "https://" + address, http: http.Client{
		Transport: &http.Transport{TLSClientConfig: config, TLSHandshakeTimeout: handshakeTimeout},
	}}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status returns the status of the target.
func (c *Client) Status(ctx context.Context) (observed.Status, error) {
	return call[observed.Status](ctx, c, "GET /v1/status", nil)
}

// Listeners returns the listeners.
func (c *Client) Listeners(ctx context.Context) ([]observed.Listener, error) {
	return call[[]observed.Listener](ctx, c, "GET /v1/listeners", nil)
}

// Subsystems returns the subsystems.
func (c *Client) Subsystems(ctx context.Context) ([]observed.Subsystem, error) {
	return call[[]observed.Subsystem](ctx, c, "GET /v1/subsystems", nil)
}

// Namespaces returns the namespaces.
func (c *Client) Namespaces(ctx context.Context) ([]observed.Namespace, error) {
	return call[[]observed.Namespace](ctx, c, "GET /v1/namespaces", nil)
}

// Hosts returns the associations with hosts.
func (c *Client) Hosts(ctx context.Context) ([]observed.Host, error) {
	return call[[]observed.Host](ctx, c, "GET /v1/hosts", nil)
}

// Connections returns the connections.
func (c *Client) Connections(ctx context.Context) ([]observed.Connection, error) {
	return call[[]observed.Connection](ctx, c, "GET /v1/connections", nil)
}

// Latency returns the latency of commands.
func (c *Client) Latency(ctx context.Context) ([]observed.Latency, error) {
	return call[[]observed.Latency](ctx, c, "GET /v1/latency", nil)
}

// Reactors returns the reactors.
func (c *Client) Reactors(ctx context.Context) ([]observed.Reactor, error) {
	return call[[]observed.Reactor](ctx, c, "GET /v1/reactors", nil)
}

// Disks returns the disks of the target's machine.
func (c *Client) Disks(ctx context.Context) ([]observed.Disk, error) {
	return call[[]observed.Disk](ctx, c, "GET /v1/disks", nil)
}

// Refusals returns the refusals of peers.
func (c *Client) Refusals(ctx context.Context) ([]observed.Refusal, error) {
	return call[[]observed.Refusal](ctx, c, "GET /v1/refusals", nil)
}

// Plan returns the changes that a reload would make.
func (c *Client) Plan(ctx context.Context) (Plan, error) {
	return call[Plan](ctx, c, "GET /v1/plan", nil)
}

// Reload applies the configuration file and returns the changes made.
func (c *Client) Reload(ctx context.Context) (Plan, error) {
	return call[Plan](ctx, c, "POST /v1/reload", nil)
}

// Put creates or changes an object; keys is a JSON object, or empty.
func (c *Client) Put(ctx context.Context, o Object, keys json.RawMessage) (Plan, error) {
	if len(keys) == 0 {
		keys = json.RawMessage("{}")
	}
	return call[Plan](ctx, c, "PUT "+o.Path()+c.query(false), keys)
}

// Create is Put for the namespace of a subsystem that has the uuid in keys. If there is none,
// Create may choose the NSID.
func (c *Client) Create(ctx context.Context, nqn string, keys json.RawMessage,
) (NamespaceID, error) {
	return call[NamespaceID](ctx, c, "POST "+Object{Subsystem: nqn}.Path()+"/namespaces", keys)
}

// Delete deletes an object; recursive also deletes everything inside it.
func (c *Client) Delete(ctx context.Context, o Object, recursive bool) (Plan, error) {
	return call[Plan](ctx, c, "DELETE "+o.Path()+c.query(recursive), nil)
}

// query returns the parameters of a request for an object.
func (c *Client) query(recursive bool) string {
	v := url.Values{}
	if recursive {
		v.Set(recursively, "true")
	}
	if c.DryRun {
		v.Set(dryRun, "true")
	}
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// Path returns the path of requests for the object.
func (o Object) Path() string {
	path := "/v1"
	for _, part := range []struct{ list, name string }{
		{"/subsystems/", o.Subsystem},
		{"/hosts/", o.Host},
		{"/keys/", o.Key},
		{"/listeners/", o.Listener},
		{"/referrals/", o.Referral},
	} {
		if part.name != "" {
			path += part.list + escape(part.name)
		}
	}
	if o.NSID != 0 {
		path += fmt.Sprintf("/namespaces/%d", o.NSID)
	}
	return path
}

// escape makes a name a segment of a path. A segment of dots would be removed from the path.
func escape(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// Objects returns the objects of the configuration.
func (c *Client) Objects(ctx context.Context) ([]observed.Configured, error) {
	return call[[]observed.Configured](ctx, c, "GET /v1/objects", nil)
}

// Disconnect ends the associations of a host.
func (c *Client) Disconnect(ctx context.Context, d Disconnect) (Disconnected, error) {
	return call[Disconnected](ctx, c, "POST /v1/hosts/disconnect", d)
}

// Drain takes listeners out of service and returns them. Their connections end.
func (c *Client) Drain(ctx context.Context, which ListenerID) ([]observed.Listener, error) {
	return call[[]observed.Listener](ctx, c, "POST /v1/listeners/drain", which)
}

// Undrain puts listeners into service again and returns them.
func (c *Client) Undrain(ctx context.Context, which ListenerID) ([]observed.Listener, error) {
	return call[[]observed.Listener](ctx, c, "POST /v1/listeners/undrain", which)
}

// ANA returns the asymmetric namespace access states.
func (c *Client) ANA(ctx context.Context) ([]ANA, error) {
	return call[[]ANA](ctx, c, "GET /v1/ana", nil)
}

// SetANA sets some of the states and returns all.
func (c *Client) SetANA(ctx context.Context, set ANASet) ([]ANA, error) {
	return call[[]ANA](ctx, c, "POST /v1/ana/set", set)
}

// Pause makes the commands for a namespace wait until Resume.
func (c *Client) Pause(ctx context.Context, id NamespaceID) (observed.Namespace, error) {
	return call[observed.Namespace](ctx, c, "POST /v1/namespaces/pause", id)
}

// Resume ends a pause.
func (c *Client) Resume(ctx context.Context, id NamespaceID) (observed.Namespace, error) {
	return call[observed.Namespace](ctx, c, "POST /v1/namespaces/resume", id)
}

// Resize changes the size of a namespace.
func (c *Client) Resize(ctx context.Context, r Resize) (observed.Namespace, error) {
	return call[observed.Namespace](ctx, c, "POST /v1/namespaces/resize", r)
}

// Events returns the known events.
func (c *Client) Events(ctx context.Context) ([]observed.Event, error) {
	return call[[]observed.Event](ctx, c, "GET /v1/events", nil)
}

// Follow calls fn with the known events and with new ones, until ctx ends, fn returns an error, or
// the target stops, which is io.ErrUnexpectedEOF.
func (c *Client) Follow(ctx context.Context, fn func(observed.Event) error) error {
	body, err := c.do(ctx, "GET /v1/events?follow=true", nil)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	for d := json.NewDecoder(body); ; {
		var e observed.Event
		if err := d.Decode(&e); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return io.ErrUnexpectedEOF
		}
		if err := fn(e); err != nil {
			return err
		}
	}
}

func call[T any](ctx context.Context, c *Client, operation string, body any) (v T, err error) {
	b, err := c.do(ctx, operation, body)
	if err != nil {
		return v, err
	}
	defer func() { _ = b.Close() }()
	if err := json.NewDecoder(b).Decode(&v); err != nil {
		return v, fmt.Errorf("the answer of the target cannot be read: %w", err)
	}
	return v, nil
}

// do sends a request and returns the body of the answer, or its problem.
func (c *Client) do(ctx context.Context, operation string, v any) (io.ReadCloser, error) {
	method, path, _ := strings.Cut(operation, " ")
	var body io.Reader = http.NoBody
	if v != nil {
		b, err := encode(v)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	r, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(err)
	}
	if r.StatusCode == http.StatusOK {
		return r.Body, nil
	}
	defer func() { _ = r.Body.Close() }()
	p := new(Problem)
	if err := json.NewDecoder(r.Body).Decode(p); err != nil || p.Detail == "" {
		return nil, fmt.Errorf("the target answers %s", r.Status)
	}
	return nil, p
}

// NoTargetError means that there is no target at the socket, or none for this user.
type NoTargetError struct{ text string }

func (e *NoTargetError) Error() string { return e.text }

// explain replaces an error of the connection by an explanation.
func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return &NoTargetError{fmt.Sprintf("no target listens at %s. It does not run, or "+
			"listens at another socket: use --socket, or --address", c.at)}
	case errors.Is(err, fs.ErrPermission):
		return &NoTargetError{fmt.Sprintf("the target at %s is not for this user. Use "+
			"root, or set control.group and control.mode", c.at)}
	}
	return fmt.Errorf("the target at %s does not answer: %w", c.at, err)
}
