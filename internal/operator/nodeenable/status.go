package nodeenable

import (
	"context"
	"fmt"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// A Status describes what a kubelet dials and why.
type Status struct {
	Unit  string `json:"unit"`
	Kind  string `json:"kind"`
	State string `json:"state"`
	// Enabled reports whether the kubelet dials pullgated for both services, now and after its next start.
	Enabled bool `json:"enabled"`
	// Runtime and Image are what it dials for each service, and where that is configured.
	Runtime doctor.Setting `json:"runtime"`
	Image   doctor.Setting `json:"image"`
	// Files are the unchanged files that pullgatectl wrote.
	Files []string `json:"files"`
	// Journal is the phase of the journal; "" if there is none.
	Journal string `json:"journal,omitempty"`
	// Without is what the kubelet would dial without the changes of pullgatectl.
	Without doctor.Setting `json:"without"`
	// Wrong are the problems that need attention, a sentence each.
	Wrong []string `json:"wrong"`
}

// Status inspects the node and changes nothing.
func (s Enabler) Status(ctx context.Context) (Status, error) {
	l, err := s.inspect(ctx)
	if err == nil {
		err = l.unknownReason
	}
	if err != nil {
		return Status{}, err
	}
	d := l.node.Dials()
	st := Status{
		Unit: l.node.Unit.Name, Kind: string(l.node.Kind), State: l.node.Unit.Active,
		Enabled: s.enabled(l),
		Runtime: d.Runtime, Image: d.Image, Without: l.base.Configured.Runtime,
		Files: []string{}, Wrong: s.wrong(ctx, l),
	}
	for _, f := range l.files {
		st.Files = append(st.Files, f.path)
	}
	if l.journal != nil {
		st.Journal = l.journal.Phase
	}
	return st, nil
}

func (s Enabler) wrong(ctx context.Context, l inspection) []string {
	all := []string{}
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	d, c, e := l.node.Dials(), l.node.Configured, s.Daemon.Listen
	if runtime, image := doctor.Same(d.Runtime.Value, e), doctor.Same(d.Image.Value, e); runtime != image {
		add("Only one of the two CRI services goes through pullgated: the kubelet dials %s for containers and %s for images (set by %s).", d.Runtime.Value, d.Image.Value, d.Image.From)
	}
	if d.Through(e) != c.Through(e) {
		add("The running kubelet dials %s, and after a restart it will dial %s (set by %s).", d.Runtime.Value, c.Runtime.Value, c.Runtime.From)
	}
	for _, f := range l.modifiedByOthers {
		add("%s was changed since pullgatectl node enable wrote it; enable and disable leave it as it is.", f)
	}
	if l.journal != nil && l.journal.Phase == Applying {
		add("pullgatectl node enable was interrupted; run it again, or pullgatectl node disable.")
	}
	if stale := s.stale(l); stale != "" {
		add("%s; run pullgatectl node enable to write it again.", stale)
	}
	if s.enabled(l) {
		if err := s.answers(ctx, l); err != nil {
			add("%s: %v.", l.node.Unit.Name+" needs pullgated", err)
		}
	}
	return all
}

// Stale returns a sentence if the file that Enable wrote on a host, for a pullgated that listens at an endpoint,
// contains settings of the kubelet that have changed since, such as the command line of its unit; "" otherwise.
func Stale(ctx context.Context, host doctor.Host, listen string) (string, error) {
	s := Enabler{Host: host, Daemon: Daemon{Config: config.Config{Listen: listen}}}
	l, err := s.inspect(ctx)
	if err == nil {
		err = l.unknownReason
	}
	if err != nil {
		return "", err
	}
	return s.stale(l), nil
}

func (s Enabler) stale(l inspection) string {
	if len(l.files) == 0 || len(l.modifiedByOthers) > 0 {
		return ""
	}
	c, err := planChange(l.host, l.base, s.listen(l))
	if err != nil {
		return ""
	}
	if now, err := readIfThere(s.Host, c.path); err != nil || string(now) == string(c.content) {
		return ""
	}
	return fmt.Sprintf("The kubelet's settings have changed since pullgatectl node enable wrote %s, which keeps the old ones in use", c.path)
}

// Lines returns the status as text; problems are after "!".
func (st Status) Lines() []string {
	all := []string{"disabled: the kubelet dials the runtime itself"}
	if st.Enabled {
		all[0] = "enabled: the kubelet dials pullgated"
	}
	row := func(name, format string, args ...any) {
		all = append(all, fmt.Sprintf("  %-12s ", name)+fmt.Sprintf(format, args...))
	}
	row("unit", "%s (%s), %s", st.Unit, st.Kind, st.State)
	row("dials", "%s, set by %s", st.Runtime.Value, st.Runtime.From)
	if st.Image != st.Runtime {
		row("for images", "%s, set by %s", st.Image.Value, st.Image.From)
	}
	if st.Without.Value != st.Runtime.Value {
		row("disabled", "it would dial %s, set by %s", st.Without.Value, st.Without.From)
	}
	for _, f := range st.Files {
		row("written", "%s", f)
	}
	if st.Journal != "" {
		row("journal", "%s, in %s", st.Journal, Journal)
	}
	for _, w := range st.Wrong {
		all = append(all, "  ! "+w)
	}
	return all
}
