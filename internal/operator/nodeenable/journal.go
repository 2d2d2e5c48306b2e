package nodeenable

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// Journal is the path of the journal. It does not depend on pullgated's configuration, which may be missing when the
// journal is needed.
const Journal = "/var/lib/pullgate/node-enable.json"

// journalVersion is the version of the journals that this package writes and reads.
const journalVersion = 1

// Phases of a journal.
const (
	// Applying: the files in the journal may have been changed, or not yet.
	Applying = "applying"
	// Enabled: all changes were made, and the kubelet was healthy afterwards.
	Enabled = "enabled"
)

// A journal lists the changes of a node. It contains no content of any file except the replaced lines, which name
// endpoints.
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

// noted is the change of a file.
type noted struct {
	Path string `json:"path"`
	// Lines are the replaced lines; none if this package wrote the whole file.
	Lines []line `json:"lines,omitempty"`
	// Folders are the folders that were made for the file, the outermost first.
	Folders []string `json:"folders,omitempty"`
}

// readJournal returns the journal, nil if there is none.
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
		return nil, program.Hintf("move the file away if pullgatectl never wrote it; otherwise check the disk, and configure the kubelet's endpoint by hand",
			"read the journal %s: %w", Journal, err)
	case j.Version != journalVersion:
		return nil, program.Hintf("use the pullgatectl that wrote it", "the journal %s has version %d, and this pullgatectl supports %d", Journal, j.Version, journalVersion)
	case !path.IsAbs(j.File.Path), j.Unit == "", j.Phase != Applying && j.Phase != Enabled:
		return nil, program.Hintf("move it away, and configure the kubelet's endpoint by hand", "invalid journal %s", Journal)
	}
	return &j, nil
}

func (j journal) marshal() []byte {
	content, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		panic(err) // only texts and numbers, so that there is no error
	}
	return append(content, '\n')
}
