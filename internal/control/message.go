package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/secret"
)

// This file reads requests and writes answers.

// statusWriter is a response that keeps only the header and the status.
type statusWriter struct {
	header http.Header
	status int
}

func (s *statusWriter) Header() http.Header         { return s.header }
func (s *statusWriter) Write(b []byte) (int, error) { return len(b), nil }
func (s *statusWriter) WriteHeader(status int)      { s.status = status }

// answer sends v, or a problem.
func answer(w http.ResponseWriter, v any, err error) {
	status, mediaType := http.StatusOK, "application/json"
	if err != nil {
		p, ok := errors.AsType[*Problem](err)
		if !ok {
			p = NewProblem(http.StatusInternalServerError, err.Error(), "")
		}
		v, status, mediaType = p, p.Status, problemType
	}
	body, err := encodeAnswer(v)
	if err != nil {
		panic(err) // ends in net/http, which closes the connection
	}
	write(w, status, mediaType, body)
}

// write sends a response within writeTimeout from now, however long it took to make, and before the
// context of the request ends.
func write(w http.ResponseWriter, status int, mediaType string, body []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
	_ = http.NewResponseController(w).Flush()
}

// readBody reads a body of JSON. curl labels a body as a form unless it is given a type.
func readBody(r *http.Request) ([]byte, error) {
	given := r.Header.Get("Content-Type")
	kind, _, err := mime.ParseMediaType(given)
	if given != "" && (err != nil || kind != "application/json" &&
		kind != "application/x-www-form-urlencoded" && !strings.HasSuffix(kind, "+json")) {
		return nil, NewProblem(http.StatusUnsupportedMediaType,
			fmt.Sprintf("the body is %q, not JSON", capped(given)),
			"Send JSON, with Content-Type: application/json.").At("Content-Type")
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, bodyBytes))
	if err != nil {
		return nil, NewProblem(http.StatusRequestEntityTooLarge, "the body cannot be read: "+
			err.Error(), fmt.Sprintf("At most %d bytes, within %v.", bodyBytes, readTimeout))
	}
	return body, nil
}

// read decodes the body of a request.
func read(r *http.Request, v any) error {
	body, err := readBody(r)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err = d.Decode(v); err == nil && d.More() {
		err = errors.New("more than one value")
	}
	if err != nil {
		p := NewProblem(http.StatusBadRequest, "the body is not as expected: "+err.Error(),
			"GET /v1/openapi.json describes it.")
		p.Place = fmt.Sprintf("byte %d of the body", d.InputOffset())
		return p
	}
	return nil
}

// Error is one line for each problem.
func (p *Problem) Error() string {
	var b strings.Builder
	if p.Place != "" {
		b.WriteString(p.Place + ": ")
	}
	b.WriteString(p.Detail)
	if p.Hint != "" {
		b.WriteString(". " + p.Hint)
	}
	for _, m := range p.More {
		b.WriteString("\n" + m.Error())
	}
	return b.String()
}

// NewProblem makes a Problem with the title of its status.
func NewProblem(status int, detail, hint string) *Problem {
	return &Problem{Title: http.StatusText(status), Status: status, Detail: detail, Hint: hint}
}

// At returns the problem with its place, such as a key of the request.
func (p *Problem) At(place string) *Problem {
	p.Place = place
	return p
}

// The media types besides JSON.
const (
	problemType = "application/problem+json"
	eventsType  = "application/x-ndjson"
)

// encode returns the text of a request.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(b, '\n'), err
}

// encodeAnswer returns the text of an answer, with secrets masked.
func encodeAnswer(v any) ([]byte, error) {
	b, err := encode(v)
	return []byte(secret.Mask(string(b))), err
}
