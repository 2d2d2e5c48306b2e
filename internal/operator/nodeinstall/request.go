package nodeinstall

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// These are types of the API group, which pullgate-dispatcher has too.
type (
	// An Action is what a request asks for.
	Action = api.Action
	// A Mode says whether verdicts are enforced.
	Mode = api.Mode
	// An Outcome is how an attempt ended.
	Outcome = api.Outcome
	// A Request is one change of a node.
	Request = api.Request
)

// The actions.
const (
	Install  = api.ActionInstall
	Rollback = api.ActionRollback
	Remove   = api.ActionRemove
)

// The modes of a request.
const (
	Shadow  = api.ModeShadow
	Enforce = api.ModeEnforce
)

// The outcomes. The zero value means that an attempt has not ended.
const (
	Installed  = api.OutcomeInstalled
	Removed    = api.OutcomeRemoved
	TakenBack  = api.OutcomeTakenBack
	Failed     = api.OutcomeFailed
	NotStarted = api.OutcomeNotStarted
)

// Bounds of a request.
const (
	leastConfirmWithin = 30 * time.Second
	mostConfirmWithin  = time.Hour
	maxRequest         = 1 << 20
)

// The names become those of files and folders.
var (
	nameOfAttempt = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	nameOfVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$`)
)

// ParseRequest reads a request. The error names every field that can never work.
func ParseRequest(text []byte) (Request, error) {
	var r Request
	if len(text) > maxRequest {
		return r, fmt.Errorf("request: %w: more than %d bytes", disk.ErrTooLarge, maxRequest)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Request{}, fmt.Errorf("request: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Request{}, errors.New("request: text after its end")
	}
	if err := check(r); err != nil {
		return Request{}, fmt.Errorf("request: %w", err)
	}
	return r, nil
}

// LoadRequest reads a request from a file.
func LoadRequest(path string) (Request, error) {
	text, err := disk.ReadIf(path, maxRequest, func(info os.FileInfo) error {
		if err := disk.CheckOwner(info); err != nil || disk.OthersWrite(info, os.Geteuid()) {
			return fmt.Errorf("%s: users other than root can write it: %w", path, cmp.Or(err, os.ErrPermission))
		}
		return nil
	})
	if err != nil {
		return Request{}, fmt.Errorf("request: %w", err)
	}
	return ParseRequest(text)
}

func check(r Request) error {
	var all []error
	add := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if !nameOfAttempt.MatchString(r.Attempt) {
		add("attempt %q: letters, digits, '.', '_' and '-', at most 100", r.Attempt)
	}
	for _, d := range []struct {
		name, text string
		least      time.Duration
	}{
		{"confirmWithin", r.ConfirmWithin, leastConfirmWithin},
		{"probation", r.Probation, 0},
		{"settle", r.Settle, time.Second},
	} {
		switch v, err := time.ParseDuration(d.text); {
		case d.text == "":
		case err != nil:
			add("%s %q: not a duration such as 90s or 2m", d.name, d.text)
		case v < d.least || v > mostConfirmWithin:
			add("%s %s: from %s to %s", d.name, d.text, d.least, mostConfirmWithin)
		}
	}
	switch r.Action {
	case Install:
		all = append(all, checkInstall(r))
	case Rollback, Remove:
	default:
		add("action %q: Install, Rollback or Remove", r.Action)
	}
	return errors.Join(all...)
}

func checkInstall(r Request) error {
	var all []error
	if !nameOfVersion.MatchString(r.Version) || strings.Contains(r.Version, "..") {
		all = append(all, fmt.Errorf("version %q: letters, digits, '.', '_', '+' and '-', at most 100", r.Version))
	}
	if r.Mode != Shadow && r.Mode != Enforce {
		all = append(all, fmt.Errorf("mode %q: Shadow or Enforce", r.Mode))
	}
	if _, err := releaseOf(r).file(Shadow, ""); err != nil {
		all = append(all, err)
	}
	switch {
	case r.PublicKey == "" && !r.Unsigned:
		all = append(all, errors.New("publicKey is missing; unsigned: true installs without signatures"))
	case r.PublicKey != "" && r.Unsigned:
		all = append(all, errors.New("publicKey and unsigned exclude each other"))
	}
	return errors.Join(all...)
}

func releaseOf(r Request) Release {
	return Release{Version: r.Version, Mode: r.Mode, Configuration: r.Configuration, PublicKey: r.PublicKey}
}

// orDefault returns a checked duration of a request.
func orDefault(text string, byDefault time.Duration) time.Duration {
	if d, err := time.ParseDuration(text); err == nil {
		return d
	}
	return byDefault
}

func confirmWithin(r Request) time.Duration {
	return orDefault(r.ConfirmWithin, api.DefaultConfirmWithin)
}

func probation(r Request) time.Duration { return orDefault(r.Probation, api.DefaultProbation) }

// A Release is a version with what it was installed with.
type Release struct {
	Version       string `json:"version"`
	Mode          Mode   `json:"mode"`
	Configuration string `json:"configuration"`       // as in a request
	PublicKey     string `json:"publicKey,omitempty"` // that its programs were verified with; "" is none
}

const header = "apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\n"

// file returns pullgated's configuration file for a mode. With a kubeconfig it has a pod source, if the configuration
// does not say whether it has one: node enable adds the same line.
func (r Release) file(mode Mode, kubeconfig string) ([]byte, error) {
	text := cmp.Or(r.Configuration, header)
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	want, err := config.ParseForOthers([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	// A false that the text has is not seen in the result, and a second line would be refused as a duplicate.
	if with, err := config.ParseForOthers([]byte(text + "noPullImageSecretRecheck: true\n")); err != nil ||
		want.NoPullImageSecretRecheck || !with.NoPullImageSecretRecheck {
		return nil, program.Hintf("remove noPullImageSecretRecheck, and write the fields as lines of their own",
			"configuration: noPullImageSecretRecheck cannot be added to it; mode decides that")
	}
	if mode == Shadow {
		text += "noPullImageSecretRecheck: true\n"
		want.NoPullImageSecretRecheck = true
	}
	if kubeconfig == "" || want.PodSource.Kubeconfig != "" {
		return []byte(text), nil
	}
	with := text + "podSource: {kubeconfig: " + kubeconfig + "}\n"
	want.PodSource.Kubeconfig = kubeconfig
	if got, err := config.ParseForOthers([]byte(with)); err == nil && reflect.DeepEqual(got, want) {
		return []byte(with), nil
	}
	return []byte(text), nil
}
