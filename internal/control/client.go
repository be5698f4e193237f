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
	// DryRun: Put and Delete return the changes and affected hosts, and change nothing.
	DryRun   bool
	at, base string
	http     http.Client
}

// socketBase begins the addresses of requests over a socket.
const socketBase = "http://target"

// NewClient makes a client of the target at a socket. It connects on first use.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Client{at: socket, base: socketBase, http: http.Client{
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

// Reload applies the configuration file and returns the changes made.
func (c *Client) Reload(ctx context.Context) (Plan, error) {
	return call[Plan](ctx, c, "POST /v1/reload", nil)
}

// Restart makes a successor replace the process of the target.
func (c *Client) Restart(ctx context.Context) (Succession, error) {
	return call[Succession](ctx, c, "POST /v1/restart", nil)
}

// Successor returns a client of the process that replaces the target.
func (c *Client) Successor(next Succession) *Client {
	if c.base != socketBase || next.ControlSocket == "" {
		return c
	}
	return NewClient(next.ControlSocket)
}

// Put creates or changes an object; keys is a JSON object, or empty.
func (c *Client) Put(ctx context.Context, o Object, keys json.RawMessage) (Plan, error) {
	if len(keys) == 0 {
		keys = json.RawMessage("{}")
	}
	return call[Plan](ctx, c, "PUT "+o.Path()+c.query(false), keys)
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

// Follow calls fn with the known events and with new ones, until ctx ends, fn returns an error, or
// the target stops, which is io.ErrUnexpectedEOF.
func (c *Client) Follow(ctx context.Context, fn func(observed.Event) error) error {
	err := each(ctx, c, "GET /v1/events?follow=true", fn)
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Trace calls fn with the flight recorder of each queue, or to follow it until ctx ends, fn returns
// an error, or the target stops, which is io.ErrUnexpectedEOF.
func (c *Client) Trace(ctx context.Context, q observed.TraceQuery,
	fn func(observed.TraceQueue) error,
) error {
	err := each(ctx, c, "GET /v1/trace?"+traceValues(&q).Encode(), fn)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// each sends a request and calls fn with each value of the answer, until ctx ends or fn returns an
// error. It returns io.EOF after a complete answer.
func each[T any](ctx context.Context, c *Client, operation string, fn func(T) error) error {
	body, err := c.do(ctx, operation, nil)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	for d := json.NewDecoder(body); err == nil; {
		var v T
		if err = d.Decode(&v); err == nil {
			err = fn(v)
		} else if !errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
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
