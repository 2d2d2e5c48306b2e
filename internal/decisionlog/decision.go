package decisionlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Version is the version of the lines.
const Version = 1

// maxImage bounds the name of an image in a line, in bytes. A tenant chooses it; one that can be pulled is shorter.
const maxImage = 1024

// timeFormat has a fixed width, so that lines sort by their time as text.
const timeFormat = "2006-01-02T15:04:05.000000000Z"

// A Decision is what a line says. The package comment tells what each field means.
type Decision struct {
	Call         string        `json:"call"`
	Pod          Pod           `json:"pod,omitzero"`
	Image        string        `json:"image"`
	ImageID      string        `json:"imageID,omitempty"`
	Repository   string        `json:"repository,omitempty"`
	Verdict      string        `json:"verdict"`
	Reason       string        `json:"reason,omitempty"`
	CredentialID string        `json:"credentialID,omitempty"`
	Secret       Secret        `json:"secret,omitzero"`
	PullPolicy   string        `json:"pullPolicy"`
	Outcome      string        `json:"outcome,omitempty"`
	Took         time.Duration `json:"-"` // written in seconds
	Shadow       bool          `json:"shadow"`
}

// A Pod is who asked.
type Pod struct {
	UID       string `json:"uid,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// A Secret is where a credential is from.
type Secret struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// An entry is a decision in the queue.
type entry struct {
	at      time.Time
	before  uint64 // decisions that were dropped between the previous entry and this one
	decided Decision
}

// line returns the entry as it is written, after so many decisions that are missing.
func (e entry) line(dropped uint64) ([]byte, error) {
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	err := to.Encode(struct {
		V    int    `json:"v"`
		Time string `json:"time"`
		Decision
		Took    float64 `json:"took"`
		Dropped uint64  `json:"dropped,omitempty"`
	}{Version, e.at.UTC().Format(timeFormat), e.decided, e.decided.Took.Seconds(), dropped})
	if err != nil {
		return nil, fmt.Errorf("write a decision as JSON: %w", err)
	}
	return b.Bytes(), nil
}

// bounded returns a name that is not too long, and keeps no longer one in memory.
func bounded(name string) string {
	if len(name) <= maxImage {
		return name
	}
	return strings.ToValidUTF8(strings.Clone(name[:maxImage]), "")
}
