// Package decisionlog keeps a log of decisions: a file with one line of JSON for each, for operators who have to answer who
// used an image, who was refused it, and why. It never makes a decision wait.
//
// # Version 1
//
// A line is an object with these fields and no others. Fields may be added within a version; one is never
// removed, and never means something else. No field ever holds a credential.
//
//	v             number   always      1
//	time          string   always      when it was decided: RFC 3339 in UTC with nine digits of a second, so that lines sort
//	call          string   always      the CRI call: ImageStatus, PullImage, CreateContainer, StartContainer, RestorePod
//	pod           object   if known    who asked
//	  uid         string   if known
//	  namespace   string   if known
//	  name        string   if known
//	image         string   always      the name as it was asked for, cut after 1024 bytes; "" if the call had none
//	imageID       string   if known    what the runtime calls the image
//	repository    string   if known    the repository that was judged
//	verdict       string   always      Allow or Reverify; a pull that did not succeed has Reverify
//	reason        string   if known    the rule that the verdict rests on; a pull that did not succeed has none
//	credentialID  string   if known    the credential that the verdict rests on
//	secret        object   if known    the Secret of the pod that holds this credential
//	  namespace   string   if known
//	  name        string   if known
//	pullPolicy    string   always      imagePullPolicy of the pod for the image; mixed or unknown
//	outcome       string   if a pull   what came of it: verified, denied, unavailable, error
//	took          number   always      seconds
//	shadow        bool     always      whether nothing was enforced (noPullImageSecretRecheck)
//	dropped       number   if any      how many decisions before this one are missing
//
// # What is written when
//
// Record puts a decision into a queue in memory and returns; if the queue is full the decision is dropped. Run takes
// it from there to the file, one write a line, without a sync: a crash of the node may lose the last lines. A line that cannot be
// written is dropped too. What is dropped is counted, and the next line that is written says how many are missing.
//
// The file is appended to, and only ever by Run. After a rotation Reopen makes Run go on in a new file of the
// same name; until then lines go to the old one. A file that was deleted is made anew by the next line.
package decisionlog
