-- A store of version 1 with two evaluations, a dump of the file.
BEGIN TRANSACTION;
CREATE TABLE treecv_evaluations (
	run VARCHAR(32) NOT NULL,
	"key" VARCHAR(64) NOT NULL,
	fingerprint VARCHAR(64) NOT NULL,
	study_name VARCHAR,
	trial_number INTEGER,
	state VARCHAR(8) NOT NULL,
	learner VARCHAR NOT NULL,
	parameters JSON NOT NULL,
	cv VARCHAR NOT NULL,
	n_folds INTEGER NOT NULL,
	n_repeats INTEGER NOT NULL,
	n_rows BIGINT NOT NULL,
	n_features INTEGER NOT NULL,
	"order" VARCHAR NOT NULL,
	method VARCHAR NOT NULL,
	scoring VARCHAR NOT NULL,
	direction VARCHAR(8) NOT NULL,
	random_state VARCHAR NOT NULL,
	mean DOUBLE,
	std DOUBLE,
	folds_scored INTEGER NOT NULL,
	diverged_folds INTEGER NOT NULL,
	n_updates BIGINT NOT NULL,
	n_updates_standard BIGINT NOT NULL,
	seconds DOUBLE NOT NULL,
	seconds_prepare DOUBLE NOT NULL,
	created_at DATETIME NOT NULL,
	versions JSON NOT NULL,
	PRIMARY KEY (run)
);
INSERT INTO "treecv_evaluations" VALUES('00000000000000000000000000000001','5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f','a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0','old',0,'complete','PegasosClassifier','{"alpha": 0.5}','4',4,1,100,5,'fixed','treecv','error','minimize','18446744073709551615',0.25,0.1,4,0,200,300,0.5,0.001,'2026-11-01 12:00:00.000000','{"optuna_treecv": "0.1.0"}');
INSERT INTO "treecv_evaluations" VALUES('00000000000000000000000000000002','5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f','a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0','old',1,'pruned','PegasosClassifier','{"alpha": 2.0, "kind": "inf"}','4',4,1,100,5,'fixed','treecv','error','minimize','18446744073709551615',9e999,NULL,2,1,150,300,0.25,0.001,'2026-11-01 12:00:01.000000','{"optuna_treecv": "0.1.0"}');
CREATE TABLE treecv_fold_score_blocks (
	run VARCHAR(32) NOT NULL,
	n_scores BIGINT NOT NULL,
	scores BLOB NOT NULL,
	PRIMARY KEY (run),
	FOREIGN KEY(run) REFERENCES treecv_evaluations (run) ON DELETE CASCADE
);
CREATE TABLE treecv_fold_scores (
	run VARCHAR(32) NOT NULL,
	fold INTEGER NOT NULL,
	score DOUBLE NOT NULL,
	PRIMARY KEY (run, fold),
	FOREIGN KEY(run) REFERENCES treecv_evaluations (run) ON DELETE CASCADE
);
INSERT INTO "treecv_fold_scores" VALUES('00000000000000000000000000000001',0,0.125);
INSERT INTO "treecv_fold_scores" VALUES('00000000000000000000000000000001',1,0.25);
INSERT INTO "treecv_fold_scores" VALUES('00000000000000000000000000000001',2,0.25);
INSERT INTO "treecv_fold_scores" VALUES('00000000000000000000000000000001',3,0.375);
INSERT INTO "treecv_fold_scores" VALUES('00000000000000000000000000000002',0,0.5);
INSERT INTO "treecv_fold_scores" VALUES('00000000000000000000000000000002',1,9e999);
CREATE TABLE treecv_schema (
	version INTEGER NOT NULL,
	PRIMARY KEY (version)
);
INSERT INTO "treecv_schema" VALUES(1);
CREATE INDEX ix_treecv_evaluations_key ON treecv_evaluations ("key");
CREATE INDEX ix_treecv_evaluations_study_name ON treecv_evaluations (study_name);
COMMIT;
