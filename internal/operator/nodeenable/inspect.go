package nodeenable

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

type inspection struct {
	node doctor.Kubelet // the current state
	// base is the node as it would be without the files and lines that this package wrote.
	base    doctor.Kubelet
	host    doctor.Host // reads base
	journal *journal    // nil if there is none
	// files are the unchanged files that this package wrote; modifiedByOthers are the changed ones.
	files            []kept
	modifiedByOthers []string
	unknown          bool // node and base are not known, except for the unit, which the journal names
}

type kept struct {
	path   string
	before []byte // nil: the file did not exist
}

// inspect returns the state of the node. If the error is why node and base are unknown, the rest of it is known.
func (s Enabler) inspect(ctx context.Context) (l inspection, err error) {
	if l.journal, err = readJournal(s.Host); err != nil {
		return l, err
	}
	unit := s.Unit
	if unit == "" && l.journal != nil {
		unit = l.journal.Unit
	}
	var why error
	if l.node, why = s.Host.Discover(ctx, unit); why != nil {
		if l.journal == nil {
			return l, why
		}
		l.unknown, l.node = true, doctor.Kubelet{Unit: doctor.Unit{Name: unit}}
	}
	if err := l.own(s.Host); err != nil {
		l.unknown = false
		return l, err
	}
	without := map[string][]byte{}
	for _, f := range l.files {
		without[f.path] = f.before
	}
	l.host = s.Host.With(without)
	if !l.unknown {
		l.base, why = l.host.Discover(ctx, unit)
	}
	return l, why
}

func (l *inspection) own(h doctor.Host) error {
	candidates := ownFiles(l.node)
	if l.journal != nil && len(l.journal.File.Lines) > 0 {
		if err := l.ownLines(h, l.journal.File); err != nil {
			return err
		}
	} else if l.journal != nil && !slices.Contains(candidates, l.journal.File.Path) {
		candidates = append(candidates, l.journal.File.Path)
	}
	for _, file := range candidates {
		switch owner, err := ownerOf(h, file); {
		case err != nil:
			return err
		case owner == oursModified:
			l.modifiedByOthers = append(l.modifiedByOthers, file)
		case owner == ours:
			l.files = append(l.files, kept{path: file})
		}
	}
	return nil
}

func (l *inspection) ownLines(h doctor.Host, f noted) error {
	content, err := h.ReadFile(f.Path)
	if err != nil {
		return fmt.Errorf("read the files of the journal: %w", err)
	}
	before, ok := undo(content, f.Lines)
	switch {
	case !ok:
		l.modifiedByOthers = append(l.modifiedByOthers, f.Path)
	case string(before) != string(content):
		l.files = append(l.files, kept{path: f.Path, before: before})
	}
	return nil
}

func (s Enabler) listen(l inspection) string {
	if l.journal != nil {
		return l.journal.Endpoint
	}
	return s.Daemon.Listen
}

func (l *inspection) unmodified() error {
	if len(l.modifiedByOthers) == 0 {
		return nil
	}
	file, was := l.modifiedByOthers[0], ""
	if l.journal != nil && l.journal.Runtime != "" {
		was = "; the kubelet dialled " + l.journal.Runtime + " before"
	}
	return program.Hintf(fmt.Sprintf("remove pullgated's endpoint from %s by hand, or remove the file if it contains "+
		"nothing else, then systemctl daemon-reload and systemctl restart %s%s", file, l.node.Unit.Name, was),
		"%s was written by pullgatectl node enable and changed since; it is left as it is", file)
}

// The first line of every file that this package writes ends with a checksum of the following lines.
const (
	signature      = "# Written by pullgatectl node enable, removed by pullgatectl node disable; checksum of the rest: "
	checksumDigits = 16
)

type ownership int

const (
	absent ownership = iota
	ofOthers
	ours
	oursModified // by another program or person
)

func sign(body string) []byte {
	return []byte(signature + checksum([]byte(body))[:checksumDigits] + "\n" + body)
}

func checksum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func ownerOf(h doctor.Host, file string) (ownership, error) {
	content, err := h.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return absent, nil
	case err != nil:
		return absent, fmt.Errorf("find the owner of %s: %w", file, err)
	}
	line, body, _ := bytes.Cut(content, []byte("\n"))
	sum, ok := strings.CutPrefix(string(line), signature)
	switch {
	case !ok:
		return ofOthers, nil
	case sum != checksum(body)[:checksumDigits]:
		return oursModified, nil
	}
	return ours, nil
}

// ownFiles returns where files of this package may be on a node: a drop-in of the unit, and one of the configuration of
// k3s, RKE2 or the kubelet, if there is a folder for it.
func ownFiles(n doctor.Kubelet) []string {
	files := []string{path.Join("/etc/systemd/system", n.Unit.Name+".d", "90-pullgate.conf")}
	switch dir := n.Configured.ConfigDir; {
	case n.RancherConfig != "":
		files = append(files, n.RancherConfig+".d/90-pullgate.yaml")
	case dir != "":
		files = append(files, path.Join(dir, "90-pullgate.conf"))
	}
	return files
}

type change struct {
	path    string
	content []byte
	lines   []line // the replaced lines in a file of another owner; nil if this package wrote the whole file
}

func planChange(h doctor.Host, n doctor.Kubelet, endpoint string) (change, error) {
	c := n.Configured
	files := ownFiles(n)
	switch {
	case n.Kind.Rancher():
		return change{path: files[1], content: sign(fmt.Sprintf(rancherBody, endpoint))}, nil
	case c.ConfigDir != "" && !c.FlagsSetEndpoint:
		return change{path: files[1], content: sign(fmt.Sprintf(kubeletBody, endpoint))}, nil
	case n.Program == "kubelet":
		return change{path: files[0], content: sign(fmt.Sprintf(unitBody, n.ExecStartFrom, n.ExecStart, endpoint))}, nil
	case c.FlagsSetEndpoint:
		return change{}, program.Hintf(fmt.Sprintf("have %s give the kubelet --container-runtime-endpoint=%s and no "+
			"--image-service-endpoint, then restart %s", n.Program, endpoint, n.Unit.Name), "%s runs %s, a program of its own "+
			"that gives the kubelet its endpoint as a flag, against which no file counts", n.Unit.Name, n.Program)
	case c.ConfigFile != "":
		return edit(h, c.ConfigFile, endpoint)
	}
	return change{}, program.Hintf("have it give the kubelet --config, or the flag --container-runtime-endpoint="+
		endpoint, "%s runs %s, a program of its own, and the kubelet has no configuration file", n.Unit.Name, n.Program)
}

const rancherBody = `# The flags of the kubelet; "+" adds them to those that other files give.
kubelet-arg+:
- container-runtime-endpoint=%[1]s
- image-service-endpoint=%[1]s
`

const kubeletBody = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: %[1]s
imageServiceEndpoint: %[1]s
`

const unitBody = `[Unit]
Wants=pullgated.service
After=pullgated.service pullgated.socket

[Service]
# The command line of %[1]s
# with two flags more: the last flag counts, also against the kubelet's configuration file.
ExecStart=
ExecStart=%[2]s --container-runtime-endpoint=%[3]s --image-service-endpoint=%[3]s
`

// Journal is the path of the journal. It does not depend on a configuration, which may be missing.
const Journal = "/var/lib/pullgate/node-enable.json"

const journalVersion = 1

// Phases of a journal.
const (
	// Applying: the files in the journal may have been changed, or not yet.
	Applying = "applying"
	// Enabled: all changes were made, and the kubelet was healthy afterwards.
	Enabled = "enabled"
)

// A journal lists the changes of a node. Of the content of files it has only replaced lines, with endpoints.
type journal struct {
	Version int    `json:"version"`
	Phase   string `json:"phase"`
	Unit    string `json:"unit"`
	// Endpoint is the endpoint that the kubelet was pointed at; Runtime and Image are what it dialled before.
	Endpoint string `json:"endpoint"`
	Runtime  string `json:"runtime"`
	Image    string `json:"image"`
	File     noted  `json:"file"`
}

type noted struct {
	Path    string   `json:"path"`
	Lines   []line   `json:"lines,omitempty"`   // the replaced lines; none if this package wrote the whole file
	Folders []string `json:"folders,omitempty"` // the folders that were made for the file, the outermost first
}

func readJournal(h doctor.Host) (*journal, error) {
	content, err := h.ReadFile(Journal)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // a node without a journal is the usual one
	}
	var j journal
	if err == nil {
		err = json.Unmarshal(content, &j)
	}
	switch {
	case err != nil:
		return nil, program.Hintf("move the file away if pullgatectl never wrote it; otherwise check the disk, and "+
			"configure the kubelet's endpoint by hand", "read the journal %s: %w", Journal, err)
	case j.Version != journalVersion:
		return nil, program.Hintf("use the pullgatectl that wrote it",
			"the journal %s has version %d, and this pullgatectl supports %d", Journal, j.Version, journalVersion)
	case !path.IsAbs(j.File.Path), j.Unit == "", j.Phase != Applying && j.Phase != Enabled:
		return nil, program.Hintf("move it away, and configure the kubelet's endpoint by hand", "invalid journal %s", Journal)
	}
	return &j, nil
}

func (j journal) marshal() []byte {
	content, _ := json.MarshalIndent(j, "", "  ") // only texts and numbers, so that there is no error
	return append(content, '\n')
}

// line is one place in a file, its old and its new text up to the end of a line; "" is no text.
type line struct {
	Was string `json:"was"`
	Now string `json:"now"`
}

func edit(h doctor.Host, file, endpoint string) (change, error) {
	content, err := h.ReadFile(file)
	if err != nil {
		return change{}, fmt.Errorf("read the kubelet's configuration: %w", err)
	}
	c := change{path: file}
	text := string(content)
	want := map[string]any{}
	if err := yaml.Unmarshal(content, &want); err != nil {
		return change{}, fmt.Errorf("read the kubelet's configuration %s: %w", file, err)
	}
	for _, key := range []string{"containerRuntimeEndpoint", "imageServiceEndpoint"} {
		if _, ok := want[key]; !ok && key == "imageServiceEndpoint" {
			continue // the text is then the same
		}
		want[key] = endpoint
		l := line{Now: key + ": " + endpoint + "\n"}
		at := regexp.MustCompile(`(?m)^` + key + `:.*\n?`).FindStringIndex(text)
		switch {
		case at != nil:
			l.Was = text[at[0]:at[1]]
		case text != "" && !strings.HasSuffix(text, "\n"):
			l.Now = "\n" + l.Now
			fallthrough
		default:
			at = []int{len(text), len(text)}
		}
		text = text[:at[0]] + l.Now + text[at[1]:]
		c.lines = append(c.lines, l)
	}
	// The result shows a file in another form (JSON, several documents, a value over several lines).
	var got map[string]any
	if err := yaml.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
		return change{}, program.Hintf(fmt.Sprintf("set containerRuntimeEndpoint: %s there by hand, and "+
			"imageServiceEndpoint if it is set, then restart the kubelet", endpoint),
			"%s is not written in a way in which two lines of it can be replaced", file)
	}
	c.content = []byte(text)
	return c, nil
}

// undo returns a file without our lines; ok is false if others changed it so that a line is not there once.
func undo(content []byte, lines []line) (before []byte, ok bool) {
	text := string(content)
	for _, l := range slices.Backward(lines) {
		if at := places(text, l.Now); len(at) == 1 {
			text = text[:at[0][0]] + l.Was + text[at[0][1]:]
			continue
		}
		if !takenBack(text, l) {
			return nil, false
		}
	}
	return []byte(text), true
}

func takenBack(text string, l line) bool {
	if l.Was != "" {
		return len(places(text, l.Was)) == 1
	}
	key, _, _ := strings.Cut(strings.TrimSpace(l.Now), ":")
	return len(places(text, key+":")) == 0
}

func places(text, lines string) [][]int {
	begin := map[bool]string{false: "(?m)^"}[strings.HasPrefix(lines, "\n")]
	return regexp.MustCompile(begin+regexp.QuoteMeta(lines)).FindAllStringIndex(text, -1)
}
